/* Opening a model: the loader finds tensors by name, the configuration says which ones must be there and of what shape,
 * and this file joins the two. Nothing of the weights is read. */
#include "model_state.h"

#include "copying.h"
#include "declared.h"
#include "model/infer.h"
#include "system.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_BYTES_MAX = 1 << 20, NAME_MAX_BYTES = 128 };

const char *nw_version(void)
{
    return NW_VERSION;
}

/* A matrix of a pack; vectors stand there as they do in a checkpoint. */
static bool in_pack(const nw_model *m, uint32_t tensor)
{
    return nw_checkpoint_pack(m->checkpoint) != NULL && !m->tensors.list[tensor].vector;
}

static nw_pack_tile pack_tile(const nw_model *m, nw_step step)
{
    return nw_pack_tile_at(nw_checkpoint_pack(m->checkpoint), (size_t)m->places[step.tensor].tile_first + step.tile);
}

nw_extent nw_model_extent(const nw_model *m, nw_step step)
{
    const nw_place *p = &m->places[step.tensor];
    if (in_pack(m, step.tensor)) {
        nw_pack_tile t = pack_tile(m, step);
        return nw_file_extent(nw_checkpoint_file(m->checkpoint, t.shard), t.offset, t.bytes);
    }
    uint64_t offset = p->tensor->offset + nw_cut_first(&p->cut, step.tile) * p->row_bytes;
    return nw_file_extent(nw_checkpoint_file(m->checkpoint, p->tensor->file), offset,
                          nw_model_tile_rows(m, step) * p->row_bytes);
}

static uint32_t tile_file(const nw_model *m, nw_step step)
{
    return in_pack(m, step.tensor) ? pack_tile(m, step).shard : m->places[step.tensor].tensor->file;
}

const nw_file *nw_model_tile_file(const nw_model *m, nw_step step)
{
    return nw_checkpoint_file(m->checkpoint, tile_file(m, step));
}

const char *nw_model_tile_path(const nw_model *m, nw_step step)
{
    return nw_checkpoint_file_path(m->checkpoint, tile_file(m, step));
}

nw_row_place nw_model_row_place(const nw_model *m, uint32_t id)
{
    const nw_cut *cut = &m->places[m->tensors.embed].cut;
    uint64_t      in_tile = id % cut->tile_rows;
    return (nw_row_place){.step = {.tensor = m->tensors.embed, .tile = (uint32_t)(id / cut->tile_rows)},
                          .strip = (uint32_t)(in_tile / cut->strip_rows),
                          .row = (size_t)(in_tile % cut->strip_rows)};
}

nw_extent nw_model_row_extent(const nw_model *m, uint32_t id)
{
    const nw_place *p = &m->places[m->tensors.embed];
    nw_row_place    at = nw_model_row_place(m, id);
    const nw_file  *file = nw_model_tile_file(m, at.step);
    nw_extent       e = {0};
    if (in_pack(m, at.step.tensor)) {
        nw_pack_tile  t = pack_tile(m, at.step);
        nw_pack_strip s = nw_pack_strip_at(nw_checkpoint_pack(m->checkpoint), (size_t)t.strip_first + at.strip);
        uint64_t      offset = t.offset + s.offset; /* a multiple of 4096: enough for most devices, not for all */
        uint64_t      before = file->align - nw_min_u64(file->align, 4096);
        e.offset = nw_round_down(offset, file->align);
        e.bytes = (size_t)nw_round_up(p->stride + before, file->align);
        e.skip = (size_t)(offset - e.offset);
        e.bytes_needed = e.skip + s.bytes;
    } else {
        uint64_t offset = p->tensor->offset + id * p->row_bytes;
        bool     aligned = p->tensor->offset % file->align == 0 && p->row_bytes % file->align == 0;
        e.offset = nw_round_down(offset, file->align);
        e.bytes = (size_t)(aligned ? p->row_bytes : nw_round_up(p->row_bytes + file->align - 1, file->align));
        e.skip = (size_t)(offset - e.offset);
        e.bytes_needed = e.skip + (size_t)p->row_bytes;
    }
    e.bytes_counted = (size_t)nw_min_u64(e.bytes, file->size - e.offset);
    return e;
}

nw_code nw_model_check_files(const nw_model *m, nw_error *err)
{
    nw_code rc = NW_OK;
    for (size_t i = 0; i < nw_checkpoint_file_count(m->checkpoint) && rc == NW_OK; i++)
        rc = nw_file_unchanged(nw_checkpoint_file(m->checkpoint, i), nw_checkpoint_file_path(m->checkpoint, i), err);
    return rc;
}

nw_code nw_model_io_open(nw_model *m, nw_io **ret_io, nw_error *err)
{
    nw_io_options options = {.choice = m->io, .depth = 1, .threads = 1};
    return nw_device_open(&m->memory, m->hooks, &options, ret_io, err);
}

uint32_t nw_model_need(const nw_model *m, const nw_tensor *t)
{
    for (uint32_t i = 0; i < m->tensors.count; i++) {
        if (m->places[i].tensor == t)
            return i;
    }
    return UINT32_MAX;
}

bool nw_model_is_vector(const nw_model *m, const nw_tensor *t)
{
    uint32_t need = nw_model_need(m, t);
    return t->dim_count == 1 || (need != UINT32_MAX && m->tensors.list[need].vector);
}

char *nw_model_string(nw_model *m, const char *text)
{
    char *copy = nw_memory_alloc(&m->memory, NW_TAG_INDEX, strlen(text) + 1, 1);
    if (copy != NULL)
        memcpy(copy, text, strlen(text) + 1);
    return copy;
}

void nw_model_string_free(nw_model *m, char *text)
{
    if (text != NULL)
        nw_memory_free(&m->memory, NW_TAG_INDEX, text, strlen(text) + 1, 1);
}

/* ---- configuration ---- */

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A directory is a model and has its config.json; a file by itself may lack it. */
static nw_code config_missing(const nw_model *m, nw_error *err)
{
    if (!is_dir(m->path))
        return NW_OK;
    bool single = nw_checkpoint_file_count(m->checkpoint) == 1;
    return nw_fail(err, NW_E_FORMAT, 0, "no config.json in '%s'; if %s itself is named%s%s%s, its shapes are inferred",
                   m->path, single ? "the weights file" : "the index of the weights", single ? " ('" : "",
                   single ? nw_checkpoint_file_path(m->checkpoint, 0) : "", single ? "')" : "");
}

/* Which file says what the model is: the one asked for, or the one beside the weights. Leaves config_path NULL where
 * there is none and none is needed. */
static nw_code find_config(nw_model *m, const char *asked, nw_error *err)
{
    char        beside[4096];
    struct stat st;
    if (asked != NULL && stat(asked, &st) != 0)
        return nw_fail(err, NW_E_ARG, errno, "configuration '%s'", asked);
    if (asked == NULL) {
        int len = snprintf(beside, sizeof beside, "%s/config.json", nw_checkpoint_dir(m->checkpoint));
        if (len < 0 || (size_t)len >= sizeof beside)
            return nw_fail(err, NW_E_ARG, 0, "'%s': the path is too long", m->path);
        if (lstat(beside, &st) != 0 && errno == ENOENT)
            return config_missing(m, err);
    }
    const char *path = asked != NULL ? asked : beside;
    m->config_path = nw_model_string(m, path);
    return m->config_path != NULL ? NW_OK : nw_memory_fail(&m->memory, err, strlen(path) + 1, "configuration");
}

static nw_code read_config(nw_model *m, nw_io *io, nw_error *err)
{
    char   *json = NULL;
    size_t  bytes = 0;
    nw_code rc = nw_file_read_whole(&m->memory, NW_TAG_INDEX, io, m->config_path, CONFIG_BYTES_MAX, &json, &bytes,
                                    &m->open_bytes, err);
    if (rc != NW_OK)
        return rc;
    if (nw_checkpoint_pack(m->checkpoint) != NULL)
        rc = nw_pack_file_check(nw_checkpoint_pack(m->checkpoint), m->config_path, json, bytes, err);
    if (rc == NW_OK)
        rc = nw_config_parse(&m->memory, m->config_path, json, bytes, &m->config, err);
    nw_memory_free(&m->memory, NW_TAG_INDEX, json, bytes + 1, 1);
    return rc;
}

static nw_code infer_config(nw_model *m, nw_error *err)
{
    nw_tensor_lookup lookup = nw_model_lookup(m);
    nw_infer_notes   notes;
    nw_error         cause = {0};
    nw_code          rc = nw_config_infer(&lookup, &m->config, &notes, &cause);
    if (rc != NW_OK)
        return nw_fail(err, rc, 0, "'%s' (no config.json beside it): %s", m->path, cause.msg);
    for (int i = 0; i < NW_INFER_LINES; i++)
        nw_log_line(&m->log, NW_LOG_WARN, "%s", notes.line[i]);
    return NW_OK;
}

/* ---- tensors ---- */

static nw_code check_shape(const nw_model *m, const nw_tensor_need *need, const nw_tensor *t, nw_error *err)
{
    const char *path = nw_checkpoint_file_path(m->checkpoint, t->file);
    bool        flat = need->rows == 1 && need->vector && need->role != NW_ROLE_BIAS;
    bool        fits = flat ? t->dim_count == 1 && t->dims[0] == need->cols
                            : t->dim_count == 2 && t->dims[0] == need->rows && t->dims[1] == need->cols;
    if (!fits) {
        char want[64], have[128] = "";
        snprintf(want, sizeof want, flat ? "[%llu]" : "[%llu, %llu]",
                 (unsigned long long)(flat ? need->cols : need->rows), (unsigned long long)need->cols);
        for (uint32_t i = 0, at = 0; i < t->dim_count && at < sizeof have - 24; i++)
            at += (uint32_t)snprintf(have + at, sizeof have - at, i == 0 ? "%llu" : ", %llu",
                                     (unsigned long long)t->dims[i]);
        return nw_fail(err, NW_E_FORMAT, 0, "%s: tensor %s has the shape [%s]; %s asks for %s", path, t->name, have,
                       m->config_path != NULL ? "config.json" : "the first encoder block", want);
    }
    return nw_model_check_type(m, t, err);
}

/* Where a tensor of a pack has its tiles. The pack has checked that their number is the shape's. */
static nw_code bind_pack(nw_model *m, uint32_t index, nw_error *err)
{
    const nw_pack        *pack = nw_checkpoint_pack(m->checkpoint);
    nw_place             *p = &m->places[index];
    nw_pack_tensor        t = nw_pack_tensor_at(pack, nw_checkpoint_index(m->checkpoint, p->tensor));
    const nw_tensor_need *need = &m->tensors.list[index];
    p->tile_first = t.tile_first;
    p->stride = t.stride;
    if (need->vector) {
        nw_pack_tile tile = nw_pack_tile_at(pack, t.tile_first);
        bool         plain = nw_pack_strip_at(pack, tile.strip_first).form == NW_FORM_PLAIN;
        if (t.tile_count != 1 || tile.strip_count != 1 || !plain || t.stored > NW_STORED_F16)
            return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': tensor %s is a vector that is not stored as it is", m->path,
                           t.name);
    } else {
        NW_CHECK(t.tile_count == p->cut.tile_count);
    }
    if (index == m->tensors.embed && t.stride == 0)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': tensor %s cannot be read by its rows", m->path, t.name);
    return NW_OK;
}

static nw_code bind_tensor(nw_model *m, uint32_t index, nw_error *err)
{
    const nw_tensor_need *need = &m->tensors.list[index];
    char                  name[NAME_MAX_BYTES], first[NAME_MAX_BYTES] = "";
    const nw_tensor      *t = NULL;
    for (uint32_t i = 0; t == NULL && nw_tensor_name(&m->config, need, i, name, sizeof name); i++) {
        if (i == 0)
            memcpy(first, name, sizeof first);
        t = nw_model_find(m, name);
    }
    if (t == NULL)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: tensor %s is missing", m->path, first);
    nw_code rc = check_shape(m, need, t, err);
    if (rc != NW_OK)
        return rc;
    m->places[index] = (nw_place){
        .tensor = t, .row_bytes = need->cols * nw_dtype_bytes(t->dtype), .cut = nw_cut_make(need->rows, need->cols)};
    return nw_checkpoint_pack(m->checkpoint) != NULL ? bind_pack(m, index, err) : NW_OK;
}

static nw_code bind_tensors(nw_model *m, nw_error *err)
{
    nw_tensor_lookup lookup = nw_model_lookup(m);
    nw_error         cause = {0};
    nw_code          rc = nw_config_settle(&m->config, &lookup, &cause);
    if (rc != NW_OK)
        return nw_fail(err, rc, 0, "%s: %s", m->path, cause.msg);

    uint32_t        count = nw_tensors_count(&m->config);
    nw_tensor_need *list = nw_memory_alloc(&m->memory, NW_TAG_INDEX, count, sizeof *list);
    if (list == NULL)
        return nw_memory_fail(&m->memory, err, count * sizeof *list, "tensor table");
    nw_tensors_fill(&m->config, list, &m->tensors);
    m->places = nw_memory_alloc(&m->memory, NW_TAG_INDEX, count, sizeof *m->places);
    if (m->places == NULL)
        return nw_memory_fail(&m->memory, err, count * sizeof *m->places, "tensor table");
    for (uint32_t i = 0; i < count && rc == NW_OK; i++)
        rc = bind_tensor(m, i, err);
    return rc == NW_OK ? nw_model_names_check(m, err) : rc;
}

static nw_code make_schedules(nw_model *m, nw_error *err)
{
    for (int pass = 0; pass < NW_PASS_COUNT; pass++) {
        size_t count = nw_schedule_count(&m->config, &m->tensors, (nw_pass)pass);
        m->steps[pass] = nw_memory_alloc(&m->memory, NW_TAG_INDEX, count, sizeof(nw_step));
        if (m->steps[pass] == NULL)
            return nw_memory_fail(&m->memory, err, count * sizeof(nw_step), "schedule");
        m->step_count[pass] = count;
        nw_schedule_fill(&m->config, &m->tensors, (nw_pass)pass, m->steps[pass]);
    }
    return NW_OK;
}

/* ---- open and close ---- */

static nw_code open_files(nw_model *m, const nw_model_options *o, nw_error *err)
{
    char    path[4096];
    nw_code rc = nw_model_path_find(o->path, path, sizeof path, err);
    if (rc != NW_OK)
        return rc;
    m->path = nw_model_string(m, path);
    if (m->path == NULL)
        return nw_memory_fail(&m->memory, err, strlen(path) + 1, "model path");
    if (o->tokenizer != NULL) {
        m->tokenizer = nw_model_string(m, o->tokenizer);
        if (m->tokenizer == NULL)
            return nw_memory_fail(&m->memory, err, strlen(o->tokenizer) + 1, "tokenizer path");
    }
    nw_io *io = NULL;
    rc = nw_model_io_open(m, &io, err);
    if (rc != NW_OK)
        return rc;
    rc = nw_checkpoint_open(&m->memory, io, m->path, &m->log, &m->open_bytes, &m->checkpoint, err);
    if (rc == NW_OK)
        rc = find_config(m, o->config, err);
    if (rc == NW_OK && m->config_path != NULL)
        rc = read_config(m, io, err);
    nw_io_close(io);
    if (rc == NW_OK)
        rc = nw_model_names_open(m, err);
    if (rc == NW_OK && m->config_path == NULL)
        rc = infer_config(m, err);
    return rc;
}

nw_code nw_model_open(const nw_model_options *options, nw_model **ret_model, nw_error *err)
{
    double start = nw_system_seconds();
    if (options->path == NULL || options->path[0] == '\0')
        return nw_fail(err, NW_E_ARG, 0, "no model given");
    /* The model object itself is counted in the account that it holds. */
    nw_memory mem;
    uint64_t  limit = options->budget_bytes != 0 ? nw_max_u64(options->budget_bytes, NW_TABLES_ROOM) : UINT64_MAX;
    nw_memory_init(&mem, limit, options->hooks != NULL ? options->hooks->memory : NULL);
    nw_model *m = nw_memory_alloc(&mem, NW_TAG_INDEX, 1, sizeof *m);
    if (m == NULL)
        return nw_memory_fail(&mem, err, sizeof *m, "model");
    m->memory = mem;
    m->log = options->log;
    m->hooks = options->hooks;
    m->budget_bytes = options->budget_bytes;
    m->io = (nw_io_choice)options->io;

    nw_code rc = open_files(m, options, err);
    if (rc == NW_OK)
        rc = bind_tensors(m, err);
    if (rc == NW_OK)
        rc = make_schedules(m, err);
    if (rc != NW_OK) {
        nw_model_close(m);
        return rc;
    }
    m->open_seconds = nw_system_seconds() - start;
    *ret_model = m;
    return NW_OK;
}

nw_model *nw_model_close(nw_model *m)
{
    if (m == NULL)
        return NULL;
    nw_tokenizer_close(m->encoder);
    nw_pieces_close(m->pieces);
    nw_model_string_free(m, m->tokenizer_path);
    nw_model_string_free(m, m->tokenizer_problem);
    for (int pass = 0; pass < NW_PASS_COUNT; pass++)
        nw_memory_free(&m->memory, NW_TAG_INDEX, m->steps[pass], m->step_count[pass], sizeof(nw_step));
    uint32_t count = m->tensors.list != NULL ? nw_tensors_count(&m->config) : 0;
    nw_memory_free(&m->memory, NW_TAG_INDEX, m->places, count, sizeof *m->places);
    nw_memory_free(&m->memory, NW_TAG_INDEX, m->tensors.list, count, sizeof *m->tensors.list);
    nw_checkpoint_close(m->checkpoint);
    nw_model_string_free(m, m->config_path);
    nw_model_string_free(m, m->name_prefix);
    nw_model_string_free(m, m->tokenizer);
    nw_model_string_free(m, m->path);
    nw_memory mem = m->memory;
    nw_memory_free(&mem, NW_TAG_INDEX, m, 1, sizeof *m);
    NW_CHECK(mem.live == 0);
    return NULL;
}
