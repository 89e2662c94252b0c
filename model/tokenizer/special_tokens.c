/* From documents to a sorted table of special tokens.
 *
 * The same token is mentioned in up to three files, in four forms. So every mention is first collected as it comes,
 * with a rank for what it knows (an id, whether it strips white space); then the list is sorted by name and mentions of
 * one name are merged, best rank first. What has no id after that gets one as the reference does: extra ids count down
 * from the top (up from 259 in ByT5: transformers' tokenization_byt5.py, `vocab_size + i - n`), then the model's own
 * piece of that name, then the configuration's, then the next free id.
 */
#include "special_tokens.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

#define TOKENS_MAX 8192u
#define TOKEN_BYTES_MAX 512u
#define NAMES_BYTES_MAX (256u << 10)
#define BYT5_EXTRA_IDS 125u
#define T5_EXTRA_IDS 100u
#define ID_NONE UINT32_MAX
/* Of one document: the names of 8192 tokens as keys, or a long template. With the tables below 1 MiB, as
 * nw_tokenizer_check promises. */
#define JSON_MEMORY_MAX ((uint64_t)384 << 10)
#define EXTRA_ID_NAME_SIZE 32

/* Ranks of a mention, best first: of two that give an id, the first is believed. */
enum { FROM_DECODER, FROM_ADDED, FROM_LIST, FROM_RULE };

/* What a token is to the model. UNUSED_ROLE (bos, sep, ..): known by name only, dropped if nothing gives it an id. */
enum { ROLE_NONE, ROLE_UNUSED, ROLE_EOS, ROLE_PAD, ROLE_UNK };

typedef enum { SECTION_NONE, SECTION_ROLE, SECTION_LIST, SECTION_DECODER } section;

/* The scan of one document. */
typedef struct {
    nw_specials *specials;
    const char  *document;
    section      section;
    bool         in_record;
    uint32_t     record_depth;
    bool         has_name;
    char         name[TOKEN_BYTES_MAX];
    uint32_t     name_len;
    nw_special   record;
    bool         has_extra_ids;
    uint64_t     extra_ids;
} scan;

static nw_code grow(nw_specials *s, uint32_t name_len, nw_error *err)
{
    if (s->count == s->cap) {
        uint32_t    cap = s->cap == 0 ? 128 : s->cap * 2;
        nw_special *items = (nw_special *)nw_memory_alloc(s->mem, NW_TAG_TOKENIZER, cap, sizeof *items);
        if (items == NULL)
            return nw_memory_fail(s->mem, err, cap * sizeof *items, "special tokens");
        if (s->count > 0)
            memcpy(items, s->items, s->count * sizeof *items);
        nw_memory_free(s->mem, NW_TAG_TOKENIZER, s->items, s->cap, sizeof *items);
        s->items = items;
        s->cap = cap;
    }
    if (name_len > s->names_cap - s->names_len) {
        uint32_t cap = s->names_cap == 0 ? 4096 : s->names_cap * 2;
        char    *names = (char *)nw_memory_alloc(s->mem, NW_TAG_TOKENIZER, cap, 1);
        if (names == NULL)
            return nw_memory_fail(s->mem, err, cap, "special tokens");
        if (s->names_len > 0)
            memcpy(names, s->names, s->names_len);
        nw_memory_free(s->mem, NW_TAG_TOKENIZER, s->names, s->names_cap, 1);
        s->names = names;
        s->names_cap = cap;
    }
    return NW_OK;
}

/* Adds a mention. `document` is for messages. */
static nw_code mention(nw_specials *s, const char *document, const char *name, size_t len, nw_special item,
                       nw_error *err)
{
    if (len == 0)
        return NW_OK; /* the reference ignores tokens without text */
    if (len > TOKEN_BYTES_MAX)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: a special token of more than %u bytes", document, TOKEN_BYTES_MAX);
    if (s->count == TOKENS_MAX || len > NAMES_BYTES_MAX - s->names_len)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: too many special tokens", document);
    nw_code rc = grow(s, (uint32_t)len, err);
    if (rc != NW_OK)
        return rc;
    memcpy(s->names + s->names_len, name, len);
    item.name_at = s->names_len;
    item.name_len = (uint32_t)len;
    s->names_len += (uint32_t)len;
    s->items[s->count++] = item;
    return NW_OK;
}

static nw_code id_parse(const scan *c, const char *text, size_t len, uint32_t *ret, nw_error *err)
{
    uint64_t id = 0;
    bool     good = len > 0 && len <= 10;
    for (size_t i = 0; good && i < len; i++) {
        good = text[i] >= '0' && text[i] <= '9';
        id = id * 10 + (uint64_t)(text[i] - '0');
    }
    if (!good || id >= ID_NONE)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: a token's id is no number", c->document);
    *ret = (uint32_t)id;
    return NW_OK;
}

static uint8_t role_of(const nw_json_event *e)
{
    static const char *const unused[] = {"bos_token", "sep_token", "cls_token", "mask_token"};
    if (nw_json_key_is(e, "eos_token"))
        return ROLE_EOS;
    if (nw_json_key_is(e, "pad_token"))
        return ROLE_PAD;
    if (nw_json_key_is(e, "unk_token"))
        return ROLE_UNK;
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
        if (nw_json_key_is(e, unused[i]))
            return ROLE_UNUSED;
    }
    return ROLE_NONE;
}

/* A token written as an object begins; its members follow. */
static void record_begin(scan *c, uint32_t depth, nw_special item)
{
    c->in_record = true;
    c->record_depth = depth;
    c->has_name = false;
    c->record = item;
}

static nw_code record_event(scan *c, const nw_json_event *e, nw_error *err)
{
    if (e->depth == c->record_depth && e->type == NW_JSON_OBJECT_END) {
        c->in_record = false;
        if (c->section == SECTION_ROLE)
            c->section = SECTION_NONE;
        return c->has_name ? mention(c->specials, c->document, c->name, c->name_len, c->record, err) : NW_OK;
    }
    if (e->depth != c->record_depth + 1)
        return NW_OK;
    if (e->type == NW_JSON_STRING && nw_json_key_is(e, "content")) {
        if (e->text_len > TOKEN_BYTES_MAX)
            return nw_fail(err, NW_E_TOKENIZER, 0, "%s: a special token of more than %u bytes", c->document,
                           TOKEN_BYTES_MAX);
        c->has_name = true;
        c->name_len = (uint32_t)e->text_len;
        memcpy(c->name, e->text, e->text_len);
    } else if (e->type == NW_JSON_BOOL && nw_json_key_is(e, "lstrip")) {
        c->record.has_flags = true;
        c->record.lstrip = nw_json_text_is(e, "true");
    } else if (e->type == NW_JSON_BOOL && nw_json_key_is(e, "rstrip")) {
        c->record.has_flags = true;
        c->record.rstrip = nw_json_text_is(e, "true");
    }
    return NW_OK;
}

/* A member of the document itself. */
static nw_code top_event(scan *c, const nw_json_event *e, nw_error *err)
{
    nw_special item = {.id = ID_NONE, .source = FROM_LIST, .role = role_of(e)};
    c->section = SECTION_NONE;
    if (item.role != ROLE_NONE) {
        if (e->type == NW_JSON_STRING)
            return mention(c->specials, c->document, e->text, e->text_len, item, err);
        if (e->type == NW_JSON_OBJECT_BEGIN) {
            c->section = SECTION_ROLE;
            record_begin(c, e->depth, item);
        }
    } else if (e->type == NW_JSON_ARRAY_BEGIN && nw_json_key_is(e, "additional_special_tokens")) {
        c->section = SECTION_LIST;
    } else if (e->type == NW_JSON_OBJECT_BEGIN && nw_json_key_is(e, "added_tokens_decoder")) {
        c->section = SECTION_DECODER;
    } else if (e->type == NW_JSON_NUMBER && nw_json_key_is(e, "extra_ids")) {
        if (!nw_json_u64(e, &c->extra_ids))
            return nw_fail(err, NW_E_TOKENIZER, 0, "%s: extra_ids is no number of tokens", c->document);
        c->has_extra_ids = true;
    }
    return NW_OK;
}

/* tokenizer_config.json and special_tokens_map.json */
static nw_code config_event(void *user, const nw_json_event *e, nw_error *err)
{
    scan      *c = (scan *)user;
    nw_special item = {.id = ID_NONE, .source = FROM_LIST};
    if (c->in_record)
        return record_event(c, e, err);
    if (e->depth == 0 && e->type != NW_JSON_OBJECT_BEGIN && e->type != NW_JSON_OBJECT_END)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: an object is expected", c->document);
    if (e->depth == 1)
        return top_event(c, e, err);
    if (e->depth == 2 && c->section == SECTION_LIST) {
        if (e->type == NW_JSON_STRING)
            return mention(c->specials, c->document, e->text, e->text_len, item, err);
        if (e->type == NW_JSON_OBJECT_BEGIN)
            record_begin(c, e->depth, item);
    } else if (e->depth == 2 && c->section == SECTION_DECODER && e->type == NW_JSON_OBJECT_BEGIN) {
        nw_code rc = id_parse(c, e->key, e->key_len, &item.id, err);
        if (rc != NW_OK)
            return rc;
        item.source = FROM_DECODER;
        record_begin(c, e->depth, item);
    }
    return NW_OK;
}

/* added_tokens.json: {"token": id} */
static nw_code added_event(void *user, const nw_json_event *e, nw_error *err)
{
    scan      *c = (scan *)user;
    nw_special item = {.source = FROM_ADDED};
    if (e->depth == 0) {
        return e->type == NW_JSON_OBJECT_BEGIN || e->type == NW_JSON_OBJECT_END
                   ? NW_OK
                   : nw_fail(err, NW_E_TOKENIZER, 0, "%s: an object is expected", c->document);
    }
    if (e->type != NW_JSON_NUMBER || e->depth != 1)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: a token's id is no number", c->document);
    nw_code rc = id_parse(c, e->text, e->text_len, &item.id, err);
    return rc == NW_OK ? mention(c->specials, c->document, e->key, e->key_len, item, err) : rc;
}

static nw_code scan_document(scan *c, const char *document, const char *bytes, size_t len, nw_json_fn fn, nw_error *err)
{
    const nw_json_limits limits = {.memory_max = JSON_MEMORY_MAX};
    if (bytes == NULL)
        return NW_OK;
    c->document = document;
    c->section = SECTION_NONE;
    c->in_record = false;
    nw_code rc = nw_json_scan(c->specials->mem, document, bytes, len, &limits, fn, c, err);
    if (rc == NW_E_FORMAT) { /* what a person is to mend is the tokenizer */
        rc = NW_E_TOKENIZER;
        if (err != NULL)
            err->code = rc;
    }
    return rc;
}

/* n of "<extra_id_n>"; ID_NONE if the name is no such name. */
static uint32_t extra_number(const char *name, size_t len)
{
    static const char prefix[] = "<extra_id_";
    const size_t      prefix_len = sizeof prefix - 1;
    uint32_t          n = 0;
    if (len < prefix_len + 2 || len > prefix_len + 7 || memcmp(name, prefix, prefix_len) != 0 || name[len - 1] != '>')
        return ID_NONE;
    if (name[prefix_len] == '0' && len > prefix_len + 2)
        return ID_NONE;
    for (size_t i = prefix_len; i < len - 1; i++) {
        if (name[i] < '0' || name[i] > '9')
            return ID_NONE;
        n = n * 10 + (uint32_t)(name[i] - '0');
    }
    return n;
}

static int name_compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, nw_min_size(a_len, b_len));
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

static bool item_before(const nw_specials *s, const nw_special *a, const nw_special *b)
{
    int order = name_compare(nw_specials_name(s, a), a->name_len, nw_specials_name(s, b), b->name_len);
    if (order != 0)
        return order < 0;
    if (a->source != b->source)
        return a->source < b->source;
    return a->name_at < b->name_at; /* as they came */
}

/* Heap sort: qsort cannot be told where the names are, and may allocate. */
static void sift_down(nw_specials *s, uint32_t at, uint32_t count)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && item_before(s, &s->items[child], &s->items[child + 1]))
            child++;
        if (!item_before(s, &s->items[at], &s->items[child]))
            return;
        nw_special item = s->items[at];
        s->items[at] = s->items[child];
        s->items[child] = item;
        at = child;
    }
}

/* Sorts by name and makes one of all mentions of a name. */
static void merge(nw_specials *s)
{
    for (uint32_t i = s->count / 2; i-- > 0;)
        sift_down(s, i, s->count);
    for (uint32_t end = s->count; end > 1; end--) {
        nw_special item = s->items[0];
        s->items[0] = s->items[end - 1];
        s->items[end - 1] = item;
        sift_down(s, 0, end - 1);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const nw_special *item = &s->items[i];
        nw_special       *last = kept > 0 ? &s->items[kept - 1] : NULL;
        if (last == NULL ||
            name_compare(nw_specials_name(s, last), last->name_len, nw_specials_name(s, item), item->name_len) != 0) {
            s->items[kept++] = *item;
            continue;
        }
        if (last->id == ID_NONE)
            last->id = item->id;
        if (item->role > last->role)
            last->role = item->role;
        if (!last->has_flags && item->has_flags) {
            last->has_flags = true;
            last->lstrip = item->lstrip;
            last->rstrip = item->rstrip;
        }
    }
    s->count = kept;
}

static nw_special *find(nw_specials *s, const char *name, size_t len)
{
    uint32_t low = 0, high = s->count;
    while (low < high) {
        uint32_t    middle = low + (high - low) / 2;
        nw_special *item = &s->items[middle];
        int         order = name_compare(nw_specials_name(s, item), item->name_len, name, len);
        if (order == 0)
            return item;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Whether the model has extra ids among its own pieces (mT5's begin with U+2581). */
static bool model_has_extra_ids(const nw_spiece_file *spiece)
{
    static const char name[] = "\xE2\x96\x81<extra_id_0>";
    const size_t      mark = 3, len = sizeof name - 1;
    size_t            at = 0;
    nw_spiece_piece   piece;
    while (nw_spiece_next(spiece, &at, &piece)) {
        if ((piece.len == len && memcmp(piece.text, name, len) == 0) ||
            (piece.len == len - mark && memcmp(piece.text, name + mark, len - mark) == 0))
            return true;
    }
    return false;
}

/* How many extra ids there are: what the configuration says, else how many it names, else what fits the model.
 * *ret_ruled: their ids follow from the count, whatever the model's own pieces are called. */
static nw_code count_extra_ids(nw_specials *s, const scan *c, const nw_tokenizer_files *files,
                               const nw_spiece_file *spiece, bool *ret_ruled, nw_error *err)
{
    uint32_t pieces = spiece != NULL ? spiece->piece_count : NW_BYT5_PIECE_COUNT;
    uint32_t usual = spiece != NULL ? T5_EXTRA_IDS : BYT5_EXTRA_IDS;
    uint32_t room = files->vocab_size - pieces;
    uint32_t named = 0;
    for (uint32_t i = 0; i < s->count; i++)
        named += extra_number(nw_specials_name(s, &s->items[i]), s->items[i].name_len) != ID_NONE;
    *ret_ruled = false;
    if (c->has_extra_ids && c->extra_ids <= nw_min_u64(room, TOKENS_MAX)) {
        *ret_ruled = true;
        s->extra_ids = (uint32_t)c->extra_ids;
    } else if (c->has_extra_ids && (spiece == NULL || !model_has_extra_ids(spiece))) {
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: %llu extra ids do not fit above %u pieces in a vocabulary of %u",
                       files->name, (unsigned long long)c->extra_ids, pieces, files->vocab_size);
    } else if (named > 0 && !c->has_extra_ids) {
        s->extra_ids = named;
    } else if (usual <= room && (spiece == NULL || !model_has_extra_ids(spiece))) {
        s->extra_ids = usual;
    } else {
        s->extra_ids = spiece == NULL ? room : 0;
    }
    return NW_OK;
}

static nw_code mention_extra_ids(nw_specials *s, nw_error *err)
{
    for (uint32_t n = 0; n < s->extra_ids; n++) {
        char       name[EXTRA_ID_NAME_SIZE];
        int        len = snprintf(name, sizeof name, "<extra_id_%u>", n);
        nw_special item = {.id = ID_NONE, .source = FROM_RULE};
        nw_code    rc = mention(s, "extra ids", name, (size_t)len, item, err);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

static nw_code mention_defaults(nw_specials *s, nw_error *err)
{
    static const char *const names[] = {"</s>", "<pad>", "<unk>"};
    static const uint8_t     roles[] = {ROLE_EOS, ROLE_PAD, ROLE_UNK};
    bool                     known[3] = {false, false, false};
    for (uint32_t i = 0; i < s->count; i++) {
        for (size_t k = 0; k < 3; k++)
            known[k] = known[k] || s->items[i].role == roles[k];
    }
    for (size_t k = 0; k < 3; k++) {
        nw_special item = {.id = ID_NONE, .source = FROM_RULE, .role = roles[k]};
        nw_code    rc = known[k] ? NW_OK : mention(s, "special tokens", names[k], strlen(names[k]), item, err);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

/* Ids from the model's own pieces of the same name. */
static void ids_from_pieces(nw_specials *s, const nw_spiece_file *spiece, bool ruled)
{
    size_t          at = 0;
    nw_spiece_piece piece;
    for (uint32_t id = 0; nw_spiece_next(spiece, &at, &piece); id++) {
        nw_special *item = find(s, (const char *)piece.text, piece.len);
        if (item == NULL || item->id != ID_NONE)
            continue;
        uint32_t n = extra_number((const char *)piece.text, piece.len);
        if (!ruled || n == ID_NONE || n >= s->extra_ids)
            item->id = id;
    }
}

/* The id of a token that neither a document nor the model's pieces know; ID_NONE if it has none. */
static uint32_t id_by_rule(const nw_specials *s, const nw_special *item, const nw_tokenizer_files *files,
                           const nw_spiece_file *spiece, uint32_t *next_free)
{
    uint32_t n = extra_number(nw_specials_name(s, item), item->name_len);
    if (n != ID_NONE && n < s->extra_ids)
        return spiece != NULL ? spiece->piece_count + s->extra_ids - 1 - n : NW_BYT5_PIECE_COUNT + n;
    switch (item->role) {
    case ROLE_EOS: return files->eos_id;
    case ROLE_PAD: return files->pad_id < files->vocab_size ? files->pad_id : ID_NONE;
    case ROLE_UNK: return spiece != NULL ? spiece->unk_id : 2;
    case ROLE_UNUSED: return ID_NONE;
    default: return (*next_free)++;
    }
}

/* Gives every token its id and drops those that have none. */
static nw_code resolve(nw_specials *s, const nw_tokenizer_files *files, const nw_spiece_file *spiece, bool ruled,
                       nw_error *err)
{
    uint32_t next_free = (spiece != NULL ? spiece->piece_count : NW_BYT5_PIECE_COUNT) + s->extra_ids;
    if (spiece != NULL)
        ids_from_pieces(s, spiece, ruled);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->items[i].id != ID_NONE && s->items[i].id >= next_free)
            next_free = s->items[i].id + 1;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        nw_special item = s->items[i];
        bool       extra = extra_number(nw_specials_name(s, &item), item.name_len) != ID_NONE;
        if (item.id == ID_NONE)
            item.id = id_by_rule(s, &item, files, spiece, &next_free);
        if (item.id == ID_NONE)
            continue;
        if (item.id >= files->vocab_size)
            return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the token '%.*s' has id %u, but the model has %u rows",
                           files->name, (int)nw_min_size(item.name_len, 64), nw_specials_name(s, &item), item.id,
                           files->vocab_size);
        if (!item.has_flags)
            item.lstrip = item.rstrip = extra && spiece != NULL;
        s->id_end = item.id >= s->id_end ? item.id + 1 : s->id_end;
        s->items[kept++] = item;
    }
    s->count = kept;
    return NW_OK;
}

static nw_code build(nw_specials *s, scan *c, const nw_tokenizer_files *files, const nw_spiece_file *spiece,
                     nw_error *err)
{
    bool    ruled = false;
    nw_code rc = scan_document(c, "tokenizer_config.json", files->config, files->config_bytes, config_event, err);
    if (rc == NW_OK)
        rc = scan_document(c, "special_tokens_map.json", files->special, files->special_bytes, config_event, err);
    if (rc == NW_OK)
        rc = scan_document(c, "added_tokens.json", files->added, files->added_bytes, added_event, err);
    if (rc == NW_OK)
        rc = mention_defaults(s, err);
    if (rc != NW_OK)
        return rc;
    merge(s);
    rc = count_extra_ids(s, c, files, spiece, &ruled, err);
    if (rc == NW_OK)
        rc = mention_extra_ids(s, err);
    if (rc != NW_OK)
        return rc;
    merge(s);
    return resolve(s, files, spiece, ruled, err);
}

nw_code nw_specials_open(nw_memory *mem, const nw_tokenizer_files *files, const nw_spiece_file *spiece,
                         nw_specials *ret, nw_error *err)
{
    NW_CHECK(files->vocab_size >= (spiece != NULL ? spiece->piece_count : NW_BYT5_PIECE_COUNT));
    nw_specials specials = {.mem = mem};
    scan       *c = (scan *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, 1, sizeof *c);
    if (c == NULL)
        return nw_memory_fail(mem, err, sizeof *c, "special tokens");
    c->specials = &specials;
    nw_code rc = build(&specials, c, files, spiece, err);
    nw_memory_free(mem, NW_TAG_TOKENIZER, c, 1, sizeof *c);
    if (rc == NW_OK)
        *ret = specials;
    else
        nw_specials_close(&specials);
    return rc;
}

void nw_specials_close(nw_specials *s)
{
    if (s->mem == NULL)
        return;
    nw_memory_free(s->mem, NW_TAG_TOKENIZER, s->items, s->cap, sizeof *s->items);
    nw_memory_free(s->mem, NW_TAG_TOKENIZER, s->names, s->names_cap, 1);
    *s = (nw_specials){0};
}

/* First token in [low, high) whose byte `at` is not below `byte`; all of them are longer than `at`. */
static uint32_t lower_bound(const nw_specials *s, uint32_t low, uint32_t high, size_t at, unsigned byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((unsigned char)nw_specials_name(s, &s->items[middle])[at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const nw_special *nw_specials_match(const nw_specials *s, const char *text, size_t len)
{
    const nw_special *best = NULL;
    uint32_t          low = 0, high = s->count;
    /* All of [low, high) begin with the text's first `at` bytes. */
    for (size_t at = 0; low < high; at++) {
        if (s->items[low].name_len == at)
            best = &s->items[low++];
        if (at == len)
            break;
        unsigned byte = (unsigned char)text[at];
        low = lower_bound(s, low, high, at, byte);
        high = lower_bound(s, low, high, at, byte + 1);
    }
    return best;
}
