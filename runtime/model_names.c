/* The names of a model's tensors in its files: what stands in front of them, and whether they are a T5's at all.
 *
 * Repacks put a path in front of each name ("text_encoders.t5xxl.transformer."), and lay other networks beside the T5.
 * The prefix is whatever stands before one tensor that every T5 has. Below it nothing is ignored but what is known to
 * mean nothing: a tensor too many is the mark of a model that computes something else.
 */
#include "model_state.h"

#include "model/stranger.h"

#include <stdio.h>
#include <string.h>

#define Q_NAME "encoder.block.0.layer.0.SelfAttention.q.weight"

enum { PREFIX_BYTES_MAX = 256, NAME_BYTES_MAX = PREFIX_BYTES_MAX + 128 };

const nw_tensor *nw_model_find(const nw_model *m, const char *name)
{
    char full[NAME_BYTES_MAX];
    int  len = snprintf(full, sizeof full, "%s%s", m->name_prefix, name);
    NW_CHECK(len >= 0 && (size_t)len < sizeof full);
    return nw_checkpoint_find(m->checkpoint, full);
}

static bool has_tensor(void *user, const char *name)
{
    return nw_model_find(user, name) != NULL;
}

static uint32_t tensor_dims(void *user, const char *name, uint64_t ret[2])
{
    const nw_tensor *t = nw_model_find(user, name);
    for (uint32_t i = 0; t != NULL && i < t->dim_count && i < 2; i++)
        ret[i] = t->dims[i];
    return t == NULL ? 0 : t->dim_count;
}

nw_tensor_lookup nw_model_lookup(nw_model *m)
{
    return (nw_tensor_lookup){.user = m, .has = has_tensor, .dims = tensor_dims};
}

/* How much of a name stands before Q_NAME: nothing, or something that ends with a point. SIZE_MAX: it is another. */
static size_t prefix_of(const char *name)
{
    size_t len = strlen(name), tail = strlen(Q_NAME);
    if (len < tail || strcmp(name + len - tail, Q_NAME) != 0)
        return SIZE_MAX;
    size_t prefix = len - tail;
    return prefix == 0 || name[prefix - 1] == '.' ? prefix : SIZE_MAX;
}

const char *nw_model_tensor_name(const nw_model *m, const nw_tensor *t)
{
    size_t len = strlen(m->name_prefix);
    return strncmp(t->name, m->name_prefix, len) == 0 ? t->name + len : NULL;
}

static bool of_a_t5(const char *name)
{
    static const char *const parts[] = {"encoder.", "decoder.", "shared.", "lm_head."};
    for (size_t i = 0; name != NULL && i < sizeof parts / sizeof *parts; i++) {
        if (strncmp(name, parts[i], strlen(parts[i])) == 0)
            return true;
    }
    return false;
}

/* Looks for a mark of another family in the names: in all of them while no prefix is known, else below it. */
static nw_code refuse_strangers(const nw_model *m, nw_error *err)
{
    const nw_stranger *stranger;
    const char        *part;
    size_t             count = nw_checkpoint_tensor_count(m->checkpoint);
    for (unsigned mark = 0; (part = nw_stranger_mark(mark, &stranger)) != NULL; mark++) {
        for (size_t i = 0; i < count; i++) {
            const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, i);
            const char      *name = m->name_prefix == NULL ? t->name : nw_model_tensor_name(m, t);
            if (m->name_prefix != NULL && !of_a_t5(name))
                continue;
            if (strstr(name, part) != NULL)
                return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s' is %s (tensor %.120s): %s", m->path, stranger->what,
                               t->name, stranger->why);
        }
    }
    return NW_OK;
}

static nw_code fail_two_prefixes(const nw_model *m, const char *a, const char *b, nw_error *err)
{
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s' holds more than one T5: tensors %.130s and %.130s", m->path, a, b);
}

static nw_code set_prefix(nw_model *m, const char *name, size_t len, nw_error *err)
{
    if (len >= PREFIX_BYTES_MAX)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': more than %d bytes before the name in tensor %.130s...",
                       m->path, PREFIX_BYTES_MAX - 1, name);
    m->name_prefix = nw_memory_alloc(&m->memory, NW_TAG_INDEX, len + 1, 1);
    if (m->name_prefix == NULL)
        return nw_memory_fail(&m->memory, err, len + 1, "names of tensors");
    memcpy(m->name_prefix, name, len);
    return NW_OK;
}

nw_code nw_model_names_open(nw_model *m, nw_error *err)
{
    const nw_tensor *found = NULL;
    size_t           count = nw_checkpoint_tensor_count(m->checkpoint);
    for (size_t i = 0; i < count; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, i);
        if (prefix_of(t->name) == SIZE_MAX)
            continue;
        if (found != NULL)
            return fail_two_prefixes(m, found->name, t->name, err);
        found = t;
    }
    nw_code rc;
    if (found == NULL) {
        rc = refuse_strangers(m, err);
        if (rc == NW_OK)
            rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor " Q_NAME " is missing: these are no T5's tensors", m->path);
        return rc;
    }
    rc = set_prefix(m, found->name, prefix_of(found->name), err);
    if (rc != NW_OK)
        return rc;
    if (m->name_prefix[0] != '\0')
        nw_log_line(&m->log, NW_LOG_INFO, "'%s': the names of the T5's tensors begin with %.200s", m->path,
                    m->name_prefix);
    /* Before anything is made of shapes and names: packed weights have others than what they stand for. */
    rc = nw_model_check_type(m, found, err);
    return rc == NW_OK ? refuse_strangers(m, err) : rc;
}

nw_code nw_model_check_type(const nw_model *m, const nw_tensor *t, nw_error *err)
{
    if (t->known)
        return NW_OK;
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "%s: tensor %s has the type %s; only F32, BF16 and F16 can be run",
                   nw_checkpoint_file_path(m->checkpoint, t->file), t->name, t->dtype_name);
}

/* Classifiers have their head outside the prefix or below it, depending on their class. */
static bool generates_without_head(const nw_model *m, const nw_tensor *t, const char *name)
{
    bool other = nw_tensor_of_other_head(t->name) || (name != NULL && nw_tensor_of_other_head(name));
    return other && m->config.head_tied && m->config.decoder_blocks > 0;
}

nw_code nw_model_names_check(const nw_model *m, nw_error *err)
{
    size_t count = nw_checkpoint_tensor_count(m->checkpoint);
    for (size_t i = 0; i < count; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, i);
        const char      *name = nw_model_tensor_name(m, t);
        if (generates_without_head(m, t, name)) {
            return nw_fail(err, NW_E_UNSUPPORTED, 0,
                           "'%s' is a T5 that classifies (tensor %.130s): its head is not computed; only models that "
                           "generate text, and encoders, can be run",
                           m->path, t->name);
        }
        if (name == NULL || nw_tensor_expected(&m->config, name))
            continue;
        return nw_fail(err, NW_E_UNSUPPORTED, 0,
                       "%s: tensor %.130s belongs to no T5, and leaving it out would change the answers: this is a "
                       "variant that cannot be run",
                       nw_checkpoint_file_path(m->checkpoint, t->file), t->name);
    }
    return NW_OK;
}
