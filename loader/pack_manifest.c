/* Reading manifest.json.
 *
 * Members may come in any order, and those that are not known are skipped: what a reader must know is listed as
 * required. The checksum is the last member, of all bytes before its digits, and what follows it is fixed, so that no
 * byte of the file is free.
 */
#include "base/json.h"
#include "pack_state.h"

#include <stdio.h>
#include <xxhash.h>

#define FILES_MAX 1000
#define TEXT_LEN_MAX ((size_t)1024)
#define END "\"\n}\n" /* behind the checksum's digits */
#define END_LEN (sizeof END - 1)
#define DIGITS 16

typedef enum {
    AT_FORMAT,
    AT_VERSION,
    AT_REQUIRED,
    AT_LOSSY,
    AT_TYPES,
    AT_MODEL,
    AT_TOOL,
    AT_COMPRESS,
    AT_BYTES,
    AT_INDEX,
    AT_SHARDS,
    AT_FILES,
    AT_ALIASES, /* the only one that need not be there */
    AT_CHECK,
    AT_COUNT,
    AT_NONE = AT_COUNT
} member;

static const struct {
    const char  *key;
    nw_json_type type;
} members[AT_COUNT] = {
    [AT_FORMAT] = {"format", NW_JSON_STRING},
    [AT_VERSION] = {"version", NW_JSON_NUMBER},
    [AT_REQUIRED] = {"required", NW_JSON_ARRAY_BEGIN},
    [AT_LOSSY] = {"lossy", NW_JSON_BOOL},
    [AT_TYPES] = {"types", NW_JSON_OBJECT_BEGIN},
    [AT_MODEL] = {"model", NW_JSON_STRING},
    [AT_TOOL] = {"tool", NW_JSON_STRING},
    [AT_COMPRESS] = {"compress", NW_JSON_STRING},
    [AT_BYTES] = {"bytes", NW_JSON_NUMBER},
    [AT_INDEX] = {"index", NW_JSON_OBJECT_BEGIN},
    [AT_SHARDS] = {"shards", NW_JSON_ARRAY_BEGIN},
    [AT_FILES] = {"files", NW_JSON_ARRAY_BEGIN},
    [AT_ALIASES] = {NW_PACK_ALIASES, NW_JSON_OBJECT_BEGIN},
    [AT_CHECK] = {"manifest_xxh3", NW_JSON_STRING},
};

/* Members of an entry that says what a file must be. */
enum { HAS_NAME = 1, HAS_BYTES = 2, HAS_XXH3 = 4, HAS_ALL = 7 };

typedef struct {
    nw_pack      *pack;
    member        at;
    bool          seen[AT_COUNT];
    nw_pack_file *entry; /* being read: the index, a shard or a file */
    unsigned      entry_has;
    bool          in_blocks, needs_aliases;
    uint64_t      check;
} scan;

bool nw_pack_file_name_ok(const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)name[i] <= 0x20 || (unsigned char)name[i] >= 0x7f || name[i] == '/')
            return false;
    }
    const char *end = len < 4 ? "" : name + len - 4;
    return len > 0 && len <= 255 && name[0] != '.' && strcmp(name, NW_PACK_MANIFEST) != 0 &&
           strcmp(name, NW_PACK_INDEX) != 0 && strcmp(end, ".nwp") != 0 && strcmp(end, ".tmp") != 0;
}

static nw_code fail(const scan *s, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "'%s': %s", s->pack->manifest_path, what);
}

/* -- values -- */

static bool hex_u64(const char *text, size_t len, uint64_t *ret)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        const char *digit = memchr("0123456789abcdef", text[i], DIGITS);
        if (digit == NULL)
            return false;
        value = value << 4 | (uint64_t)(strchr("0123456789abcdef", *digit) - "0123456789abcdef");
    }
    *ret = value;
    return len == DIGITS;
}

static nw_code keep_text(scan *s, const nw_json_event *e, const char **ret_text, nw_error *err)
{
    *ret_text = nw_names_add(&s->pack->names, e->text, e->text_len);
    return *ret_text != NULL ? NW_OK : nw_memory_fail(s->pack->mem, err, e->text_len + 1, s->pack->manifest_path);
}

/* A member of an entry. Returns what is wrong with it in *ret_why. */
static nw_code entry_member(scan *s, const nw_json_event *e, nw_error *err)
{
    if (nw_json_key_is(e, "name") && e->type == NW_JSON_STRING) {
        s->entry_has |= HAS_NAME;
        return keep_text(s, e, &s->entry->name, err);
    }
    if (nw_json_key_is(e, "bytes")) {
        s->entry_has |= HAS_BYTES;
        return nw_json_u64(e, &s->entry->bytes) ? NW_OK : fail(s, "the bytes of a file are no number", err);
    }
    if (nw_json_key_is(e, "xxh3")) {
        s->entry_has |= HAS_XXH3;
        bool good = e->type == NW_JSON_STRING && hex_u64(e->text, e->text_len, &s->entry->xxh3);
        return good ? NW_OK : fail(s, "the checksum of a file is not 16 hexadecimal digits", err);
    }
    s->in_blocks = e->type == NW_JSON_ARRAY_BEGIN && nw_json_key_is(e, "blocks") && s->at == AT_SHARDS;
    return NW_OK;
}

static nw_code entry_begin(scan *s, nw_error *err)
{
    nw_pack       *p = s->pack;
    bool           shard = s->at == AT_SHARDS;
    nw_pack_file **list = shard ? &p->shard_files : &p->files;
    size_t        *count = shard ? &p->shard_count : &p->file_count, *cap = shard ? &p->shard_cap : &p->file_cap;
    if (*count == (shard ? NW_PACK_SHARDS_MAX : FILES_MAX))
        return fail(s, shard ? "more than 99999 shards" : "more than 1000 files", err);
    nw_pack_file *grown = nw_array_grow(p->mem, *list, *count, cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(p->mem, err, sizeof *grown * (*cap + 1), p->manifest_path);
    *list = grown;
    s->entry = &grown[(*count)++];
    *s->entry = (nw_pack_file){0};
    s->entry_has = 0;
    return NW_OK;
}

static nw_code entry_end(scan *s, nw_error *err)
{
    return s->entry_has == HAS_ALL ? NW_OK : fail(s, "a file has no name, bytes or xxh3", err);
}

static nw_code block_add(scan *s, const nw_json_event *e, nw_error *err)
{
    nw_pack         *p = s->pack;
    nw_pack_holding *grown = nw_array_grow(p->mem, p->holdings, p->holding_count, &p->holding_cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(p->mem, err, sizeof *grown * (p->holding_cap + 1), p->manifest_path);
    p->holdings = grown;
    nw_pack_holding h = {.shard = p->shard_count - 1};
    nw_code         rc = keep_text(s, e, &h.name, err);
    if (rc == NW_OK)
        p->holdings[p->holding_count++] = h;
    return rc;
}

static nw_code alias_add(scan *s, const nw_json_event *e, nw_error *err)
{
    nw_pack      *p = s->pack;
    nw_pack_alias a;
    if (e->type != NW_JSON_STRING || !nw_tensor_name_ok(e->key, e->key_len) ||
        !nw_tensor_name_ok(e->text, e->text_len) || p->alias_count == NW_TENSOR_COUNT_MAX)
        return fail(s, "an alias is no name of a tensor, or there are too many", err);
    nw_pack_alias *grown = nw_array_grow(p->mem, p->aliases, p->alias_count, &p->alias_cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(p->mem, err, sizeof *grown * (p->alias_cap + 1), p->manifest_path);
    p->aliases = grown;
    a.name = nw_names_add(&p->names, e->key, e->key_len);
    if (a.name == NULL)
        return nw_memory_fail(p->mem, err, e->key_len + 1, p->manifest_path);
    nw_code rc = keep_text(s, e, &a.kept, err);
    if (rc == NW_OK)
        p->aliases[p->alias_count++] = a;
    return rc;
}

static nw_code required_feature(scan *s, const nw_json_event *e, nw_error *err)
{
    for (int f = NW_FORM_PLAIN + 1; f < NW_FORM_COUNT && e->type == NW_JSON_STRING; f++) {
        if (nw_json_text_is(e, nw_form_name((nw_form)f))) {
            s->pack->about.forms |= 1u << f;
            return NW_OK;
        }
    }
    if (e->type != NW_JSON_STRING)
        return fail(s, "a required feature is no text", err);
    if (nw_json_text_is(e, NW_PACK_ALIASES)) {
        s->needs_aliases = true;
        return NW_OK;
    }
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': the pack requires '%.*s', which this version does not have",
                   s->pack->manifest_path, (int)nw_min_size(e->text_len, 100), e->text);
}

static nw_code type_bytes(scan *s, const nw_json_event *e, nw_error *err)
{
    for (int t = 0; t < NW_STORED_COUNT; t++) {
        if (nw_json_key_is(e, nw_stored_name((nw_stored)t)) && nw_json_u64(e, &s->pack->about.stored_bytes[t]))
            return NW_OK;
    }
    return nw_fail(err, NW_E_FORMAT, 0, "'%s': no bytes of a type are '%.*s'", s->pack->manifest_path,
                   (int)nw_min_size(e->key_len, 100), e->key);
}

/* -- members -- */

static nw_code check_version(const scan *s, const nw_json_event *e, nw_error *err)
{
    if (nw_json_text_is(e, "1"))
        return NW_OK;
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': a pack of version %.*s, and this one reads version %d",
                   s->pack->manifest_path, (int)nw_min_size(e->text_len, 20), e->text, NW_PACK_VERSION);
}

static nw_code top_member(scan *s, const nw_json_event *e, nw_error *err)
{
    nw_pack_summary *about = &s->pack->about;
    member           m = 0;
    while (m < AT_COUNT && !nw_json_key_is(e, members[m].key))
        m++;
    s->at = m;
    s->in_blocks = false;
    if (m == AT_NONE)
        return NW_OK;
    if (e->type != members[m].type) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': '%s' is not what it should be", s->pack->manifest_path,
                       members[m].key);
    }
    s->seen[m] = true;
    switch (m) {
    case AT_FORMAT:
        return nw_json_text_is(e, NW_PACK_FORMAT) ? NW_OK : fail(s, "is not the manifest of a " NW_PACK_FORMAT, err);
    case AT_VERSION: return check_version(s, e, err);
    case AT_LOSSY: about->lossy = nw_json_text_is(e, "true"); return NW_OK;
    case AT_MODEL: return keep_text(s, e, &about->model, err);
    case AT_TOOL: return keep_text(s, e, &about->tool, err);
    case AT_COMPRESS: return keep_text(s, e, &about->compress, err);
    case AT_BYTES: return nw_json_u64(e, &about->bytes) ? NW_OK : fail(s, "'bytes' is no number of bytes", err);
    case AT_CHECK:
        return hex_u64(e->text, e->text_len, &s->check) ? NW_OK
                                                        : fail(s, "its checksum is not 16 hexadecimal digits", err);
    case AT_INDEX:
        s->entry = &s->pack->index_file;
        s->entry_has = 0;
        return NW_OK;
    case AT_REQUIRED:
    case AT_TYPES:
    case AT_SHARDS:
    case AT_FILES:
    case AT_ALIASES:
    case AT_COUNT: break;
    }
    return NW_OK;
}

static nw_code on_value(void *user, const nw_json_event *e, nw_error *err)
{
    scan *s = user;
    bool  ends = e->type == NW_JSON_OBJECT_END || e->type == NW_JSON_ARRAY_END;
    if (e->depth == 0)
        return e->type == NW_JSON_OBJECT_BEGIN || ends ? NW_OK : fail(s, "is not a JSON object", err);
    if (e->depth == 1 && ends) {
        nw_code rc = s->at == AT_INDEX ? entry_end(s, err) : NW_OK;
        s->at = AT_NONE;
        return rc;
    }
    if (e->depth == 1)
        return top_member(s, e, err);
    bool list = s->at == AT_SHARDS || s->at == AT_FILES;
    if (e->depth == 2 && s->at == AT_REQUIRED && !ends)
        return required_feature(s, e, err);
    if (e->depth == 2 && s->at == AT_TYPES && !ends)
        return type_bytes(s, e, err);
    if (e->depth == 2 && s->at == AT_ALIASES && !ends)
        return alias_add(s, e, err);
    if (e->depth == 2 && s->at == AT_INDEX && !ends)
        return entry_member(s, e, err);
    if (e->depth == 2 && list && ends)
        return entry_end(s, err);
    if (e->depth == 2 && list)
        return e->type == NW_JSON_OBJECT_BEGIN ? entry_begin(s, err)
                                               : fail(s, "a list of files has something else", err);
    if (e->depth == 3 && list && !ends)
        return entry_member(s, e, err);
    if (e->depth == 4 && s->in_blocks && !ends)
        return e->type == NW_JSON_STRING ? block_add(s, e, err) : fail(s, "the name of a block is no text", err);
    return NW_OK;
}

/* -- the whole -- */

static nw_code check_names(const scan *s, nw_error *err)
{
    const nw_pack *p = s->pack;
    for (member m = 0; m < AT_COUNT; m++) {
        if (!s->seen[m] && m != AT_ALIASES)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': has no '%s'", p->manifest_path, members[m].key);
    }
    if (s->needs_aliases != (p->alias_count > 0))
        return fail(s, "does not require aliases where it has some, or the reverse", err);
    if (p->shard_count == 0)
        return fail(s, "has no shards", err);
    if (strcmp(p->index_file.name, NW_PACK_INDEX) != 0)
        return fail(s, "the index is not called " NW_PACK_INDEX, err);
    for (size_t i = 0; i < p->shard_count; i++) {
        char name[64];
        snprintf(name, sizeof name, NW_PACK_SHARD_FORMAT, (unsigned)i + 1, (unsigned)p->shard_count);
        if (strcmp(p->shard_files[i].name, name) != 0) {
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': shard %zu of %zu is called '%.100s'", p->manifest_path, i + 1,
                           p->shard_count, p->shard_files[i].name);
        }
    }
    for (size_t i = 0; i < p->file_count; i++) {
        bool good = nw_pack_file_name_ok(p->files[i].name);
        for (size_t k = 0; k < i && good; k++)
            good = strcmp(p->files[k].name, p->files[i].name) != 0;
        if (!good) {
            return nw_fail(err, NW_E_FORMAT, 0,
                           "'%s': '%.100s' cannot be the name of a file in a pack, or is there twice", p->manifest_path,
                           p->files[i].name);
        }
    }
    return NW_OK;
}

static nw_code check_end(const scan *s, const char *text, size_t len, nw_error *err)
{
    uint64_t digits = 0;
    if (len < DIGITS + END_LEN || memcmp(text + len - END_LEN, END, END_LEN) != 0 ||
        !hex_u64(text + len - END_LEN - DIGITS, DIGITS, &digits) || digits != s->check)
        return fail(s, "does not end with its checksum", err);
    if (XXH3_64bits(text, len - END_LEN - DIGITS) != s->check)
        return nw_fail(err, NW_E_IO, 0, "'%s': its checksum is wrong: the file is damaged", s->pack->manifest_path);
    return NW_OK;
}

nw_code nw_pack_read_manifest(nw_pack *pack, nw_error *err)
{
    static const nw_json_limits limits = {.depth_max = 8, .string_len_max = TEXT_LEN_MAX};
    scan                        s = {.pack = pack, .at = AT_NONE};
    char                       *text = NULL;
    size_t                      len = 0;
    nw_code rc = nw_file_read_whole(pack->mem, NW_TAG_INDEX, pack->io, pack->manifest_path, NW_PACK_MANIFEST_MAX, &text,
                                    &len, pack->read_bytes, err);
    if (rc != NW_OK)
        return rc;
    rc = nw_json_scan(pack->mem, pack->manifest_path, text, len, &limits, on_value, &s, err);
    if (rc == NW_OK)
        rc = check_names(&s, err);
    if (rc == NW_OK)
        rc = check_end(&s, text, len, err);
    nw_memory_free(pack->mem, NW_TAG_INDEX, text, len + 1, 1);
    return rc;
}
