/* What a model's files say of generating, and the text of what was generated. */
#include "base/generation_parse.h"
#include "base/size.h"
#include "model/stop.h"
#include "model_state.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };
#define DOCUMENT_BYTES_MAX ((size_t)1 << 20)

/* Reads a file of the model and has it parsed: as a whole, or with `task` of the task. */
static nw_code read_settings(nw_model *m, const char *path, const char *task, nw_generation_settings *ret,
                             nw_error *err)
{
    nw_io  *io = NULL;
    char   *json = NULL;
    size_t  bytes = 0;
    nw_code rc = nw_model_io_open(m, &io, err);
    if (rc == NW_OK)
        rc = nw_file_read_whole(&m->memory, NW_TAG_TOKENIZER, io, path, DOCUMENT_BYTES_MAX, &json, &bytes,
                                &m->open_bytes, err);
    if (rc == NW_OK && nw_checkpoint_pack(m->checkpoint) != NULL)
        rc = nw_pack_file_check(nw_checkpoint_pack(m->checkpoint), path, json, bytes, err);
    if (rc == NW_OK)
        rc = task != NULL ? nw_generation_parse_task(&m->memory, path, json, bytes, task, ret, err)
                          : nw_generation_parse(&m->memory, path, json, bytes, ret, err);
    nw_memory_free(&m->memory, NW_TAG_TOKENIZER, json, json != NULL ? bytes + 1 : 0, 1);
    nw_io_close(io);
    return rc;
}

/* generation_config.json beside the configuration. False: there is none. */
static bool find_generation_config(const nw_model *m, char path[PATH_BYTES])
{
    struct stat st;
    if (m->config_path == NULL)
        return false;
    const char *slash = strrchr(m->config_path, '/');
    int         dir = slash != NULL ? (int)(slash - m->config_path) + 1 : 0; /* the slash with it */
    int         len = snprintf(path, PATH_BYTES, "%.*sgeneration_config.json", dir, m->config_path);
    return len > 0 && len < PATH_BYTES && stat(path, &st) == 0;
}

nw_code nw_model_generation(nw_model *m, const char *task, nw_generation_settings *ret, nw_error *err)
{
    char                   path[PATH_BYTES];
    nw_generation_settings s = nw_generation_defaults(), file;
    const char            *general = find_generation_config(m, path) ? path : m->config_path;
    nw_code                rc = NW_OK;
    if (task != NULL && m->config_path == NULL)
        return nw_fail(err, NW_E_ARG, 0, "no config.json, and so no task '%s'", task);
    if (general != NULL)
        rc = read_settings(m, general, NULL, &file, err);
    if (rc == NW_OK && general != NULL)
        nw_generation_merge(&s, &file);
    if (rc == NW_OK && task != NULL)
        rc = read_settings(m, m->config_path, task, &file, err);
    if (rc == NW_OK && task != NULL)
        nw_generation_merge(&s, &file);
    if (rc != NW_OK)
        return rc;
    if (s.decoder_start_token_id == NW_ID_NONE)
        s.decoder_start_token_id = m->config.start_id;
    if (s.eos_token_id.count == 0) {
        s.eos_token_id.count = m->config.eos_count;
        memcpy(s.eos_token_id.ids, m->config.eos_ids, sizeof s.eos_token_id.ids);
    }
    *ret = s;
    return NW_OK;
}

/* ---- text ---- */

bool nw_decode_ids_until(nw_model *m, const nw_generation_settings *settings, const uint32_t *ids, size_t count,
                         bool (*write)(void *user, const char *text, size_t len), void *user, bool *ret_stopped)
{
    static const nw_stop_strings none;
    nw_stop                      stop;
    nw_text                      text = {0};
    char                         piece[NW_TEXT_MAX], shown[NW_TEXT_MAX + NW_STOP_BYTES_MAX];
    size_t                       len;
    bool                         more = true;
    nw_stop_init(&stop, settings != NULL ? &settings->stop_strings : &none);
    *ret_stopped = false;
    for (size_t i = 0; i <= count && more && !*ret_stopped; i++) {
        uint32_t id = i < count ? ids[i] : NW_TEXT_END;
        size_t   bytes = nw_model_decode_text(m, &text, id, piece, sizeof piece);
        *ret_stopped = nw_stop_feed(&stop, piece, bytes, shown, &len);
        more = write(user, shown, len);
    }
    len = nw_stop_end(&stop, shown);
    return more && write(user, shown, len);
}

bool nw_model_decode_ids(nw_model *m, const nw_generation_settings *settings, const uint32_t *ids, size_t count,
                         bool (*write)(void *user, const char *text, size_t len), void *user)
{
    bool stopped;
    return nw_decode_ids_until(m, settings, ids, count, write, user, &stopped);
}
