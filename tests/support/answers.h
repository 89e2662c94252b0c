/* What a session answers, as one number per prompt: a hash over the exact bits of its encoder states, of the logits of
 * every step and of its tokens. Two runs gave the same answers if and only if the numbers are equal. */
#ifndef NW_TEST_ANSWERS_H
#define NW_TEST_ANSWERS_H

#include "hooks.h"
#include "narrows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS_MAX = 6, PROMPT_TOKENS_MAX = 320 };

/* A model and what it is asked. */
typedef struct {
    const char *name;
    char        dir[1024];
    size_t      prompt_count, tokens; /* tokens: new ones of each answer, at most */
    size_t      longest;
    /* Prompts are asked in turn for a greedy answer, two samples, and three beams, by these settings; NULL: all
     * greedily. */
    const nw_generation_settings *sampled, *searched;
    uint32_t                      ids[PROMPTS_MAX][PROMPT_TOKENS_MAX];
    size_t                        counts[PROMPTS_MAX];
} subject;

typedef struct {
    uint64_t hash[PROMPTS_MAX];
    size_t   tokens[PROMPTS_MAX];
} answers;

/* FNV-1a over 64-bit words, then bytes; with a finishing shift so that no word is without effect on the low bits. */
static inline uint64_t answers_mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; p++, bytes--)
        hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

/* Adds a prompt of `count` drawn ids below `vocab`, the end token last. */
static inline void subject_add(subject *s, size_t count, uint32_t vocab, uint64_t seed)
{
    NW_CHECK(s->prompt_count < PROMPTS_MAX && count >= 1 && count <= PROMPT_TOKENS_MAX);
    uint32_t *ids = s->ids[s->prompt_count];
    for (size_t i = 0; i + 1 < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = 2 + (uint32_t)(seed >> 33) % (vocab - 2);
    }
    ids[count - 1] = 1;
    s->counts[s->prompt_count++] = count;
    s->longest = count > s->longest ? count : s->longest;
}

typedef struct {
    uint64_t hash;
    size_t   vocab, tokens;
} answer_reader;

static inline bool answer_read(void *user, const nw_token *t)
{
    answer_reader *r = user;
    r->hash = answers_mix(r->hash, t->logits, r->vocab * sizeof *t->logits);
    r->hash = answers_mix(r->hash, &t->id, sizeof t->id);
    r->tokens++;
    return true;
}

/* The sequences of an answer may end in any order: what each adds does not depend on it. */
static inline void answer_sequence(void *user, const nw_sequence *q)
{
    answer_reader *r = user;
    uint64_t       own = answers_mix(q->sequence + 1, q->ids, q->count * sizeof *q->ids);
    own = answers_mix(own, q->logprobs, q->count * sizeof *q->logprobs);
    if (q->score == q->score)
        own = answers_mix(own, &q->score, sizeof q->score);
    r->hash += own;
    r->tokens += q->count;
}

static inline nw_request answer_request(const subject *s, size_t prompt, answer_reader *reader)
{
    nw_request q = {.input_ids = s->ids[prompt],
                    .input_count = s->counts[prompt],
                    .max_new_tokens = s->tokens,
                    .on_token = answer_read,
                    .user = reader};
    if (s->sampled != NULL && prompt % 3 != 0) {
        q.settings = prompt % 3 == 1 ? s->sampled : s->searched;
        q.seed = 7 + prompt;
        q.logprobs = true;
        q.on_token = NULL;
        q.on_sequence = answer_sequence;
    }
    return q;
}

/* One prompt in a session that is open: generated, then encoded when `states` has room for its encoder states.
 * The hash covers the states only then; answers_seed starts it. */
#define ANSWERS_SEED ((uint64_t)0xcbf29ce484222325u)

static inline nw_code answer_generate(nw_session *session, const subject *s, size_t prompt, size_t vocab,
                                      uint64_t *ret_hash, size_t *ret_tokens, nw_error *err)
{
    answer_reader r = {.hash = ANSWERS_SEED, .vocab = vocab};
    nw_request    q = answer_request(s, prompt, &r);
    nw_result     result = {0};
    nw_code       rc = nw_session_generate(session, &q, &result, err);
    if (rc == NW_OK) {
        NW_CHECK(q.settings != NULL || result.count == r.tokens);
        *ret_hash = r.hash;
        *ret_tokens = r.tokens;
    }
    return rc;
}

static inline nw_code answer_encode(nw_session *session, const subject *s, size_t prompt, size_t d_model,
                                    uint64_t *hash, nw_error *err)
{
    size_t  bytes = s->counts[prompt] * d_model * sizeof(float);
    float  *states = malloc(bytes);
    nw_code rc = nw_session_encode(session, &(nw_encode_request){.ids = s->ids[prompt], .count = s->counts[prompt]},
                                   states, err);
    if (rc == NW_OK)
        *hash = answers_mix(*hash, states, bytes);
    free(states);
    return rc;
}

/* All prompts together, submitted in the order given; more than the lanes wait. */
static inline nw_code answer_together(nw_session *session, const subject *s, const size_t *order, size_t vocab,
                                      answers *ret, nw_error *err)
{
    answer_reader readers[PROMPTS_MAX];
    size_t        live = 1;
    nw_code       rc = NW_OK;
    for (size_t i = 0; i < s->prompt_count && rc == NW_OK; i++) {
        uint64_t id;
        readers[order[i]] = (answer_reader){.hash = ANSWERS_SEED, .vocab = vocab};
        nw_request q = answer_request(s, order[i], &readers[order[i]]);
        rc = nw_session_submit(session, &q, &id, err);
    }
    while (rc == NW_OK && live > 0)
        rc = nw_session_step(session, &live, err);
    for (size_t i = 0; i < s->prompt_count && rc == NW_OK; i++) {
        ret->hash[i] = readers[i].hash;
        ret->tokens[i] = readers[i].tokens;
    }
    return rc;
}

#endif
