/* generation_config.json, and the same keys in config.json, to settings. One walk over the document: members of the
 * object that counts (the document's own, or a task's) are looked up in the table of fields. */
#include "base/generation_parse.h"

#include "base/json.h"
#include "generation_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char            *name; /* of the file */
    const char            *task; /* NULL: the document's own members */
    nw_generation_settings settings, off;
    bool                   in_tasks, in_task, found;
    uint32_t               depth;      /* of the members that count: 1, of a task's 3 */
    int                    open;       /* the field whose list is open; -1: none */
    char                   tasks[200]; /* names of all tasks */
} reader;

static void *at(reader *r, int field)
{
    return (char *)&r->settings + nw_generation_fields[field].offset;
}

static nw_code wrong(const reader *r, int field, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "%s: %s is not %s", r->name, nw_generation_fields[field].key, what);
}

static nw_code too_many(const reader *r, int field, int most, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "%s: %s has more than %d %s", r->name, nw_generation_fields[field].key,
                   most, what);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static nw_code read_count(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    uint64_t value;
    uint64_t most = nw_generation_fields[field].kind == NW_FIELD_LENGTH ? NW_NEW_TOKENS_MAX : UINT32_MAX - 1;
    if (!nw_json_u64(e, &value))
        return wrong(r, field, "a whole number", err);
    *(uint32_t *)at(r, field) = (uint32_t)nw_min_u64(value, most);
    return NW_OK;
}

static nw_code read_real(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    double value;
    if (!nw_json_f64(e, &value) || !isfinite(value))
        return wrong(r, field, "a number", err);
    *(double *)at(r, field) = value;
    return NW_OK;
}

static nw_code read_early(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    nw_early_stopping value;
    if (e->type == NW_JSON_STRING && nw_json_text_is(e, "never"))
        value = NW_EARLY_NEVER;
    else if (e->type == NW_JSON_BOOL)
        value = nw_json_text_is(e, "true") ? NW_EARLY_TRUE : NW_EARLY_FALSE;
    else
        return wrong(r, field, "true, false or \"never\"", err);
    *(nw_early_stopping *)at(r, field) = value;
    return NW_OK;
}

static nw_code read_bool(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    if (e->type != NW_JSON_BOOL)
        return wrong(r, field, "true or false", err);
    *(bool *)at(r, field) = nw_json_text_is(e, "true");
    return NW_OK;
}

static bool token_id(const nw_json_event *e, uint32_t *ret)
{
    uint64_t value;
    if (!nw_json_u64(e, &value) || value >= (1u << 24))
        return false;
    *ret = (uint32_t)value;
    return true;
}

static nw_code read_prefix(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    if (e->type != NW_JSON_STRING)
        return wrong(r, field, "a string", err);
    if (e->text_len > NW_PREFIX_MAX)
        return too_many(r, field, NW_PREFIX_MAX, "bytes", err);
    memcpy(r->settings.prefix, e->text, e->text_len);
    r->settings.prefix_len = (uint32_t)e->text_len;
    return NW_OK;
}

/* ---- members of lists -------------------------------------------------------------------------------------------- */

static nw_code add_id(reader *r, int field, const nw_json_event *e, uint32_t *count, uint32_t *ids, int most,
                      nw_error *err)
{
    uint32_t id = 0;
    if (!token_id(e, &id))
        return wrong(r, field, "made of token ids", err);
    if (*count == (uint32_t)most)
        return too_many(r, field, most, "ids", err);
    ids[(*count)++] = id;
    return NW_OK;
}

static nw_code add_string(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    nw_stop_strings *list = at(r, field);
    if (e->type != NW_JSON_STRING || e->text_len == 0)
        return wrong(r, field, "made of strings that are not empty", err);
    if (list->count == NW_STOP_STRINGS_MAX)
        return too_many(r, field, NW_STOP_STRINGS_MAX, "strings", err);
    if (e->text_len > NW_STOP_BYTES_MAX)
        return too_many(r, field, NW_STOP_BYTES_MAX, "bytes in a string", err);
    memcpy(list->text[list->count], e->text, e->text_len);
    list->lens[list->count++] = (uint16_t)e->text_len;
    return NW_OK;
}

/* Of bad_words_ids: sequences one level down, their ids another. */
static nw_code add_word(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    nw_bad_words *words = at(r, field);
    if (e->depth == r->depth + 1) {
        if (e->type == NW_JSON_ARRAY_END)
            return words->lens[words->count - 1] > 0 ? NW_OK : wrong(r, field, "made of lists with an id or more", err);
        if (e->type != NW_JSON_ARRAY_BEGIN)
            return wrong(r, field, "a list of lists of token ids", err);
        if (words->count == NW_BAD_WORDS_MAX)
            return too_many(r, field, NW_BAD_WORDS_MAX, "sequences", err);
        words->lens[words->count++] = 0;
        return NW_OK;
    }
    words->lens[words->count - 1]++;
    return add_id(r, field, e, &words->id_count, words->ids, NW_ID_LIST_MAX, err);
}

static nw_code add_member(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    nw_end_ids *ends = at(r, field);
    nw_id_list *list = at(r, field);
    uint32_t   *one = at(r, field);
    uint32_t    first = 0, rest;
    switch (nw_generation_fields[field].kind) {
    case NW_FIELD_END_IDS:
        return add_id(r, field, e, &ends->count, ends->ids, NW_EOS_MAX, err);
    case NW_FIELD_ID_LIST:
        return add_id(r, field, e, &list->count, list->ids, NW_ID_LIST_MAX, err);
    case NW_FIELD_ID:
        return add_id(r, field, e, &first, *one == NW_ID_NONE ? one : &rest, 1, err);
    case NW_FIELD_STRINGS:
        return add_string(r, field, e, err);
    default:
        return add_word(r, field, e, err);
    }
}

/* ---- members of the object --------------------------------------------------------------------------------------- */

static bool is_list(nw_field_kind kind)
{
    return kind == NW_FIELD_END_IDS || kind == NW_FIELD_ID_LIST || kind == NW_FIELD_ID || kind == NW_FIELD_STRINGS ||
           kind == NW_FIELD_WORDS;
}

static nw_code read_scalar(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    switch (nw_generation_fields[field].kind) {
    case NW_FIELD_BOOL:
        return read_bool(r, field, e, err);
    case NW_FIELD_EARLY:
        return read_early(r, field, e, err);
    case NW_FIELD_COUNT:
    case NW_FIELD_LENGTH:
        return read_count(r, field, e, err);
    case NW_FIELD_REAL:
        return read_real(r, field, e, err);
    case NW_FIELD_ID:
    case NW_FIELD_END_IDS:
        return token_id(e, &(uint32_t){0}) ? add_member(r, field, e, err) : wrong(r, field, "a token id", err);
    case NW_FIELD_PREFIX:
        return read_prefix(r, field, e, err);
    case NW_FIELD_STRINGS:
        return add_member(r, field, e, err);
    default:
        return wrong(r, field, "a list", err);
    }
}

/* Sets a field to what it is when off, where lists also begin. */
static void clear(reader *r, int field)
{
    const nw_field *f = &nw_generation_fields[field];
    memcpy(at(r, field), (const char *)&r->off + f->offset, f->size);
}

static nw_code read_field(reader *r, int field, const nw_json_event *e, nw_error *err)
{
    bool ids_of_model = field == NW_GENERATION_EOS_TOKEN_ID || field == NW_GENERATION_DECODER_START_TOKEN_ID;
    clear(r, field);
    if (e->type == NW_JSON_NULL && ids_of_model)
        return NW_OK; /* the configuration has them */
    r->settings.given |= NW_GENERATION_BIT(field);
    if (e->type == NW_JSON_NULL)
        return NW_OK;
    if (e->type == NW_JSON_ARRAY_BEGIN && is_list(nw_generation_fields[field].kind)) {
        r->open = field;
        return NW_OK;
    }
    return read_scalar(r, field, e, err);
}

/* Keys that change what generate() answers, and the number that changes nothing (true counts as 1). */
static void note_unfollowed(reader *r, const nw_json_event *e)
{
    static const struct {
        const char *key;
        double      neutral;
    } table[] = {
        {"num_beam_groups", 1},        {"diversity_penalty", 0},  {"encoder_repetition_penalty", 1},
        {"typical_p", 1},              {"epsilon_cutoff", 0},     {"eta_cutoff", 0},
        {"penalty_alpha", 0},          {"guidance_scale", 1},     {"encoder_no_repeat_ngram_size", 0},
        {"renormalize_logits", 0},     {"max_time", 0},           {"exponential_decay_length_penalty", 0},
        {"sequence_bias", 0},          {"force_words_ids", 0},    {"constraints", 0},
        {"forced_decoder_ids", 0},     {"token_healing", 0},      {"watermarking_config", 0},
    };
    double value = 1;
    if (e->type == NW_JSON_NULL || r->settings.not_followed != NULL)
        return;
    if (e->type == NW_JSON_BOOL)
        value = nw_json_text_is(e, "true") ? 1 : 0;
    bool number = e->type == NW_JSON_BOOL || nw_json_f64(e, &value);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (nw_json_key_is(e, table[i].key) && !(number && value == table[i].neutral))
            r->settings.not_followed = table[i].key;
    }
}

static nw_code read_member(reader *r, const nw_json_event *e, nw_error *err)
{
    for (int i = 0; i < NW_GENERATION_FIELD_COUNT; i++) {
        if (nw_json_key_is(e, nw_generation_fields[i].key) && (i != NW_GENERATION_PREFIX || r->task != NULL))
            return read_field(r, i, e, err);
    }
    note_unfollowed(r, e);
    return NW_OK;
}

/* ---- the document ------------------------------------------------------------------------------------------------ */

static void note_task(reader *r, const nw_json_event *e)
{
    size_t used = strlen(r->tasks);
    size_t room = sizeof r->tasks - used;
    if (e->key_len + 3 < room)
        snprintf(r->tasks + used, room, "%s%.*s", used > 0 ? ", " : "", (int)e->key_len, e->key);
}

/* Which object the walk is in. Returns whether e is a member that counts. */
static bool counts(reader *r, const nw_json_event *e)
{
    if (r->task == NULL)
        return e->depth == 1 && e->key != NULL;
    if (e->depth == 1)
        r->in_tasks = e->type == NW_JSON_OBJECT_BEGIN && nw_json_key_is(e, "task_specific_params");
    if (e->depth == 2 && r->in_tasks) {
        bool object = e->type == NW_JSON_OBJECT_BEGIN;
        r->in_task = object && nw_json_key_is(e, r->task);
        r->found = r->found || r->in_task;
        if (object)
            note_task(r, e);
    }
    return e->depth == 3 && r->in_tasks && r->in_task && e->key != NULL;
}

static nw_code on_event(void *user, const nw_json_event *e, nw_error *err)
{
    reader *r = user;
    if (e->depth == 0 && e->type != NW_JSON_OBJECT_BEGIN && e->type != NW_JSON_OBJECT_END)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: not a JSON object", r->name);
    if (e->depth <= r->depth)
        r->open = -1;
    else if (r->open >= 0)
        return add_member(r, r->open, e, err);
    return counts(r, e) ? read_member(r, e, err) : NW_OK;
}

static nw_code parse(nw_memory *mem, reader *r, const char *json, size_t bytes, nw_error *err)
{
    r->settings = nw_generation_defaults();
    r->off = nw_generation_off();
    r->open = -1;
    r->depth = r->task == NULL ? 1 : 3;
    return nw_json_scan(mem, r->name, json, bytes, NULL, on_event, r, err);
}

nw_code nw_generation_parse(nw_memory *mem, const char *name, const char *json, size_t bytes,
                            nw_generation_settings *ret, nw_error *err)
{
    reader  r = {.name = name};
    nw_code rc = parse(mem, &r, json, bytes, err);
    if (rc == NW_OK)
        *ret = r.settings;
    return rc;
}

nw_code nw_generation_parse_task(nw_memory *mem, const char *name, const char *json, size_t bytes, const char *task,
                                 nw_generation_settings *ret, nw_error *err)
{
    reader  r = {.name = name, .task = task};
    nw_code rc = parse(mem, &r, json, bytes, err);
    if (rc != NW_OK)
        return rc;
    if (!r.found) {
        return nw_fail(err, NW_E_ARG, 0, "%s has no task '%s'%s%s", name, task, r.tasks[0] != '\0' ? "; it has: " : "",
                       r.tasks);
    }
    *ret = r.settings;
    return NW_OK;
}
