/* Logits of any decoder prefix, found by the session's own decoding and remembered: what a search over sequences needs
 * whose code is not the session's. A prefix is a node of a tree; a request whose answer is forced to begin with a
 * prefix gives the logits after it, and after all that it goes on to choose by itself, which searches often come to as
 * well. */
#ifndef NW_TEST_LOGITS_TREE_H
#define NW_TEST_LOGITS_TREE_H

#include "base/check.h"
#include "narrows.h"

#include <stdlib.h>
#include <string.h>

typedef struct logits_node {
    uint32_t            token;
    float              *logits; /* [vocab], of what follows; NULL: not known yet */
    struct logits_node *child, *sibling;
} logits_node;

typedef struct {
    nw_session     *session;
    const uint32_t *input;
    size_t          input_count, vocab, length_max; /* new tokens */
    logits_node     root;                           /* the start token alone */
    size_t          requests;
} logits_tree;

static inline logits_node *logits_child(logits_node *n, uint32_t token)
{
    logits_node *c = n->child;
    while (c != NULL && c->token != token)
        c = c->sibling;
    if (c == NULL) {
        c = calloc(1, sizeof *c);
        NW_CHECK(c != NULL);
        *c = (logits_node){.token = token, .sibling = n->child};
        n->child = c;
    }
    return c;
}

typedef struct {
    logits_tree *tree;
    logits_node *at;
} logits_walk;

static inline bool logits_remember(void *user, const nw_token *t)
{
    logits_walk *w = user;
    if (w->at->logits == NULL) {
        w->at->logits = malloc(w->tree->vocab * sizeof(float));
        NW_CHECK(w->at->logits != NULL);
        memcpy(w->at->logits, t->logits, w->tree->vocab * sizeof(float));
    }
    w->at = logits_child(w->at, t->id);
    return true;
}

/* Logits [vocab] after `count` new tokens. They live as long as the tree. */
static inline const float *logits_after(logits_tree *tree, const uint32_t *tokens, size_t count)
{
    logits_node *n = &tree->root;
    for (size_t i = 0; i < count; i++)
        n = logits_child(n, tokens[i]);
    if (n->logits == NULL) {
        logits_walk w = {.tree = tree, .at = &tree->root};
        nw_request  q = {.input_ids = tree->input,
                         .input_count = tree->input_count,
                         .forced_ids = tokens,
                         .forced_count = count,
                         .max_new_tokens = tree->length_max,
                         .on_token = logits_remember,
                         .user = &w};
        nw_result   r = {0};
        nw_error    err = {0};
        tree->requests++;
        NW_CHECK(nw_session_generate(tree->session, &q, &r, &err) == NW_OK);
        NW_CHECK(n->logits != NULL);
    }
    return n->logits;
}

static inline void logits_free(logits_node *n)
{
    for (logits_node *c = n->child, *next; c != NULL; c = next) {
        next = c->sibling;
        logits_free(c);
        free(c);
    }
    free(n->logits);
    n->logits = NULL;
    n->child = NULL;
}

#endif
