/* The text side of a model: finding the tokenizer's files, and the two things made from them. The encoder is large and
 * short-lived; the pieces (our own table for decoding) are small and stay. The files are read once a run, whichever of
 * the two is asked for first. */
#define _DEFAULT_SOURCE
#include "declared.h"
#include "model_state.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };
#define SPIECE_BYTES_MAX ((size_t)64 << 20)
#define DOCUMENT_BYTES_MAX ((size_t)4 << 20)

/* One document, read whole; data NULL: not there. */
typedef struct {
    char  *data;
    size_t bytes;
} document;

typedef struct {
    char     path[PATH_BYTES]; /* of the sentencepiece file; "" for ByT5 */
    document spiece, config, special, added;
} text_files;

static void document_free(nw_model *m, document *d)
{
    nw_memory_free(&m->memory, NW_TAG_TOKENIZER, d->data, d->bytes + 1, 1);
    *d = (document){0};
}

static void text_files_free(nw_model *m, text_files *f)
{
    document_free(m, &f->spiece);
    document_free(m, &f->config);
    document_free(m, &f->special);
    document_free(m, &f->added);
}

static uint64_t text_files_bytes(const text_files *f)
{
    return f->spiece.bytes + f->config.bytes + f->special.bytes + f->added.bytes;
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 || errno != ENOENT;
}

static bool join_path(char *buf, const char *dir, const char *name)
{
    int len = snprintf(buf, PATH_BYTES, "%s/%s", dir, name);
    return len >= 0 && len < PATH_BYTES;
}

/* The directory that holds the tokenizer's files, and the sentencepiece file in it ("" if there is none). */
static nw_code find_files(const nw_model *m, char dir[PATH_BYTES], char spiece[PATH_BYTES], nw_error *err)
{
    static const char *const names[] = {"spiece.model", "tokenizer.model", "sentencepiece.model",
                                        "sentencepiece.bpe.model"};
    struct stat              st;
    const char              *from = m->tokenizer != NULL ? m->tokenizer : nw_checkpoint_dir(m->checkpoint);
    spiece[0] = '\0';
    if (m->tokenizer != NULL && stat(from, &st) != 0)
        return nw_fail(err, NW_E_TOKENIZER, errno, "tokenizer '%s'", from);
    if (strlen(from) >= PATH_BYTES)
        return nw_fail(err, NW_E_TOKENIZER, 0, "tokenizer '%s': the path is too long", from);
    snprintf(dir, PATH_BYTES, "%s", from);
    if (m->tokenizer != NULL && !S_ISDIR(st.st_mode)) {
        snprintf(spiece, PATH_BYTES, "%s", from);
        char *slash = strrchr(dir, '/');
        if (slash == NULL)
            snprintf(dir, PATH_BYTES, ".");
        else
            slash[slash == dir ? 1 : 0] = '\0';
        return NW_OK;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (join_path(spiece, dir, names[i]) && exists(spiece))
            return NW_OK;
        spiece[0] = '\0';
    }
    return NW_OK;
}

static nw_code read_document(nw_model *m, nw_io *io, const char *path, size_t max, document *ret, nw_error *err)
{
    nw_code rc = nw_file_read_whole(&m->memory, NW_TAG_TOKENIZER, io, path, max, &ret->data, &ret->bytes, NULL, err);
    /* Whatever is wrong with a tokenizer's file, the model itself may still run from ids: the code says which part. A
     * disk that fails is not the file's fault. */
    if (rc == NW_E_FORMAT || (rc == NW_E_IO && err->os_errno != EIO))
        err->code = rc = NW_E_TOKENIZER;
    if (rc == NW_OK && nw_checkpoint_pack(m->checkpoint) != NULL)
        rc = nw_pack_file_check(nw_checkpoint_pack(m->checkpoint), path, ret->data, ret->bytes, err);
    return rc;
}

static nw_code read_optional(nw_model *m, nw_io *io, const char *dir, const char *name, document *ret, nw_error *err)
{
    char path[PATH_BYTES];
    if (!join_path(path, dir, name) || !exists(path))
        return NW_OK;
    return read_document(m, io, path, DOCUMENT_BYTES_MAX, ret, err);
}

/* "ByT5Tokenizer" in tokenizer_config.json: real ByT5 checkpoints say it there, if not in config.json. */
static bool says_byt5(const document *config)
{
    static const char name[] = "\"ByT5Tokenizer\"";
    return config->data != NULL && strstr(config->data, name) != NULL;
}

static nw_code read_files(nw_model *m, text_files *f, nw_error *err)
{
    char    dir[PATH_BYTES], other[PATH_BYTES];
    nw_code rc = find_files(m, dir, f->path, err);
    if (rc != NW_OK)
        return rc;
    nw_error ignored = {0};
    if (err == NULL)
        err = &ignored;
    nw_io *io = NULL;
    rc = nw_model_io_open(m, &io, err);
    if (rc != NW_OK)
        return rc;
    rc = read_optional(m, io, dir, "tokenizer_config.json", &f->config, err);
    if (rc == NW_OK)
        rc = read_optional(m, io, dir, "special_tokens_map.json", &f->special, err);
    if (rc == NW_OK)
        rc = read_optional(m, io, dir, "added_tokens.json", &f->added, err);
    bool bytes = m->config.byte_tokens || (f->path[0] == '\0' && says_byt5(&f->config));
    if (rc == NW_OK && f->path[0] != '\0' && !bytes)
        rc = read_document(m, io, f->path, SPIECE_BYTES_MAX, &f->spiece, err);
    if (rc == NW_OK && f->spiece.data == NULL && !bytes) {
        bool fast = join_path(other, dir, "tokenizer.json") && exists(other);
        rc = nw_fail(err, NW_E_TOKENIZER, 0, "no spiece.model in '%s'%s", dir,
                     fast ? "; tokenizer.json alone cannot be used" : "");
    }
    nw_io_close(io);
    return rc;
}

static nw_tokenizer_files as_files(const nw_model *m, const text_files *f)
{
    return (nw_tokenizer_files){
        .name = f->spiece.data != NULL ? f->path : "ByT5",
        .spiece = f->spiece.data,
        .spiece_bytes = f->spiece.bytes,
        .config = f->config.data,
        .config_bytes = f->config.bytes,
        .special = f->special.data,
        .special_bytes = f->special.bytes,
        .added = f->added.data,
        .added_bytes = f->added.bytes,
        .vocab_size = m->config.vocab_size,
        .eos_id = m->config.eos_ids[0],
        .pad_id = m->config.pad_id,
    };
}

static nw_code learn_facts(nw_model *m, const text_files *f, nw_error *err)
{
    nw_tokenizer_files files = as_files(m, f);
    nw_code            rc = nw_tokenizer_check(&m->memory, &files, &m->facts, err);
    if (rc != NW_OK)
        return rc;
    m->facts.file_bytes = text_files_bytes(f);
    if (m->tokenizer_path == NULL && f->spiece.data != NULL) {
        size_t bytes = strlen(f->path) + 1;
        m->tokenizer_path = nw_memory_alloc(&m->memory, NW_TAG_INDEX, bytes, 1);
        if (m->tokenizer_path == NULL)
            return nw_memory_fail(&m->memory, err, bytes, "tokenizer path");
        memcpy(m->tokenizer_path, f->path, bytes);
    }
    m->facts_known = true;
    m->has_tokenizer = true;
    return NW_OK;
}

/* Loading and encoding are the first large things a process does: refused before they start if the budget cannot hold
 * them. `bytes`: resident, beyond the program and the model's index. */
static nw_code check_budget(const nw_model *m, uint64_t bytes, const char *what, nw_error *err)
{
    uint64_t needed = NW_DECLARED_PROCESS + m->memory.tag_live[NW_TAG_INDEX] + bytes;
    needed += NW_RESERVE(needed);
    if (m->budget_bytes == 0 || needed <= m->budget_bytes)
        return NW_OK;
    char    size[16];
    nw_code rc =
        nw_fail(err, NW_E_BUDGET, 0, "the budget is too small: %s needs %s", what, nw_bytes_format(needed, true, size));
    if (err != NULL)
        err->bytes_needed = needed;
    return rc;
}

/* Reads the files once and makes what is asked for and not there yet. */
static nw_code load_text(nw_model *m, bool with_encoder, nw_error *err)
{
    if (m->pieces != NULL && (m->encoder != NULL || !with_encoder))
        return NW_OK;
    text_files f = {0};
    nw_code    rc = read_files(m, &f, err);
    if (rc == NW_OK) {
        m->tokenizer_bytes += text_files_bytes(&f);
        rc = learn_facts(m, &f, err);
    }
    nw_tokenizer_files files = as_files(m, &f);
    if (rc == NW_OK && m->pieces == NULL)
        rc = nw_pieces_open(&m->memory, &files, &m->pieces, err);
    nw_tokenizer_cost cost = nw_tokenizer_declared(&m->facts);
    if (rc == NW_OK && with_encoder)
        rc = check_budget(m, cost.peak + cost.pieces + text_files_bytes(&f), "loading the tokenizer", err);
    if (rc == NW_OK && with_encoder && m->encoder == NULL)
        rc = nw_tokenizer_open(&m->memory, &files, &m->encoder, err);
    text_files_free(m, &f);
    return rc;
}

nw_code nw_model_text_load(nw_model *m, nw_error *err)
{
    return load_text(m, false, err);
}

static nw_code keep_problem(nw_model *m, nw_error *err)
{
    m->tokenizer_problem = nw_model_string(m, err->msg);
    if (m->tokenizer_problem == NULL)
        return nw_memory_fail(&m->memory, err, strlen(err->msg) + 1, "tokenizer");
    m->facts_known = true;
    *err = (nw_error){0};
    return NW_OK;
}

nw_code nw_model_tokenizer_facts(nw_model *m, nw_tokenizer_cost *ret_cost, uint64_t *ret_file_bytes, nw_error *err)
{
    nw_error ignored = {0};
    if (err == NULL)
        err = &ignored;
    *ret_cost = (nw_tokenizer_cost){0};
    *ret_file_bytes = 0;
    if (!m->facts_known) {
        text_files f = {0};
        nw_code    rc = read_files(m, &f, err);
        if (rc == NW_OK)
            rc = learn_facts(m, &f, err);
        text_files_free(m, &f);
        malloc_trim(0);
        if (rc == NW_E_TOKENIZER) /* the model runs from ids */
            return keep_problem(m, err);
        if (rc != NW_OK)
            return rc;
    }
    if (m->has_tokenizer) {
        *ret_cost = nw_tokenizer_declared(&m->facts);
        *ret_file_bytes = m->facts.file_bytes;
    }
    return NW_OK;
}

nw_code nw_model_tokenizer_describe(nw_model *m, nw_tokenizer_info *ret, nw_error *err)
{
    nw_tokenizer_cost cost;
    uint64_t          bytes;
    nw_code           rc = nw_model_tokenizer_facts(m, &cost, &bytes, err);
    if (rc != NW_OK)
        return rc;
    *ret = (nw_tokenizer_info){.kind = "none", .problem = m->tokenizer_problem};
    if (m->has_tokenizer) {
        *ret = (nw_tokenizer_info){.kind = m->tokenizer_path != NULL ? "sentencepiece" : "bytes",
                                   .path = m->tokenizer_path,
                                   .pieces = m->facts.piece_count,
                                   .extra_ids = m->facts.extra_ids};
    }
    return NW_OK;
}

nw_code nw_model_encode_text(nw_model *m, const char *text, size_t len, uint32_t *ids, size_t cap, size_t *ret_count,
                             nw_error *err)
{
    nw_code rc = load_text(m, true, err);
    if (rc != NW_OK)
        return rc;
    nw_tokenizer_cost cost = nw_tokenizer_declared(&m->facts);
    rc = check_budget(m, cost.peak + cost.pieces + len * (1 + cost.per_text_byte), "encoding a text this long", err);
    if (rc != NW_OK)
        return rc;
    return nw_tokenizer_encode(m->encoder, text, len, ids, cap, ret_count, err);
}

size_t nw_model_unknown_text(nw_model *m, const char *text, size_t len, char *buf, size_t cap)
{
    NW_CHECK(cap > 0);
    buf[0] = '\0';
    return m->encoder != NULL ? nw_tokenizer_unknown(m->encoder, text, len, buf, cap) : 0;
}

void nw_model_tokenizer_release(nw_model *m)
{
    m->encoder = nw_tokenizer_close(m->encoder);
    malloc_trim(0);
}

const char *nw_model_piece(nw_model *m, uint32_t id, size_t *ret_len, nw_error *err)
{
    return load_text(m, false, err) == NW_OK ? nw_pieces_raw(m->pieces, id, ret_len) : NULL;
}

size_t nw_model_decode_text(nw_model *m, nw_text *text, uint32_t id, char *buf, size_t cap)
{
    if (m->pieces == NULL && load_text(m, false, NULL) != NW_OK)
        return 0;
    nw_decoder d = {.started = text->started, .held_count = text->held_count};
    memcpy(d.held, text->held, sizeof d.held);
    size_t len = id == NW_TEXT_END ? nw_pieces_decode_end(m->pieces, &d, buf, cap)
                                   : nw_pieces_decode(m->pieces, &d, id, buf, cap);
    text->started = d.started;
    text->held_count = d.held_count;
    memcpy(text->held, d.held, sizeof d.held);
    return len;
}
