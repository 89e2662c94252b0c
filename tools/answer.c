/* Text streams as it is chosen: nw_model_decode_text gives whole UTF-8 characters and holds back the rest. JSON comes
 * when the answer is complete. The long parts of an object are written straight from the ids, because an answer as a
 * tree of JSON values would take a hundred bytes a token that no plan has counted; only the statistics, of fixed size,
 * are a tree. */
#include "answer.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "interrupt.h"
#include "print.h"

/* One answer under way. */
typedef struct {
    answer_style *style;
    nw_text       text;
    bool          begun; /* something of it is on stdout */
    bool          failed;
    int           status; /* -1, or what the scores' file ended with */
} answer;

bool answer_room(answer_style *style, buffer *room, uint64_t limit)
{
    if (!style->json)
        return true;
    size_t n = style->max_new_tokens, candidates = n * style->top_count;
    size_t bytes = candidates * sizeof(nw_candidate) + n * (sizeof(double) + sizeof(uint32_t));
    if (!buffer_reserve(room, bytes, (size_t)limit))
        return false;
    memset(room->data, 0, bytes);
    style->candidates = (nw_candidate *)room->data;
    style->logprob_list = (double *)(style->candidates + candidates);
    style->ids = (uint32_t *)(style->logprob_list + n);
    return true;
}

static bool write_text(answer *a, const char *text, size_t len)
{
    if (len == 0)
        return true;
    if (a->style->terminal && !a->style->lines) {
        a->style->progress->hidden = true;
        print_progress_clear();
    }
    a->begun = true;
    return (a->style->lines ? print_line_text(text, len) : print_bytes(text, len)) && print_flush();
}

static bool write_token(answer *a, const nw_token *token)
{
    char text[NW_TEXT_MAX];
    bool ok;
    if (a->style->has_text) {
        ok = write_text(a, text, nw_model_decode_text(a->style->model, &a->text, token->id, text, sizeof text));
    } else {
        char  id[16];
        char *at = id + sizeof id;
        for (uint32_t rest = token->id;; rest /= 10) {
            *--at = (char)('0' + rest % 10);
            if (rest < 10)
                break;
        }
        if (a->begun)
            *--at = ' ';
        ok = write_text(a, at, (size_t)(id + sizeof id - at));
    }
    a->failed = !ok;
    return ok;
}

/* One new token: its scores to their file, its candidates to the JSON to come, its text to stdout. */
static bool take_token(void *user, const nw_token *token)
{
    answer             *a = user;
    const answer_style *style = a->style;
    if (style->scores != NULL) {
        const float *scores = style->scores_processed ? token->scores : token->logits;
        a->status = tensor_file_write(style->scores, scores, style->vocab_size);
        if (a->status != -1)
            return false;
    }
    if (!style->json)
        return write_token(a, token);
    if (token->top_count > 0)
        memcpy(style->candidates + token->index * style->top_count, token->top, token->top_count * sizeof *token->top);
    return true;
}

/* ---- JSON
 * ------------------------------------------------------------------------------------------------------------- */

static const char *finish_name(nw_finish finish)
{
    switch (finish) {
    case NW_FINISH_EOS: return "eos";
    case NW_FINISH_LENGTH: return "length";
    case NW_FINISH_NONE:
    case NW_FINISH_STOP: break;
    }
    return "stop";
}

static cJSON *stats_json(const nw_session *session)
{
    nw_stats stats;
    nw_session_stats(session, &stats);
    double passes = (double)stats.decode_passes;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "budget_bytes", (double)stats.budget_bytes);
    cJSON_AddNumberToObject(json, "peak_rss_bytes", (double)stats.peak_rss_bytes);
    cJSON_AddNumberToObject(json, "bytes_read", (double)stats.bytes_read);
    cJSON_AddNumberToObject(json, "seconds_load", stats.seconds_load);
    cJSON_AddNumberToObject(json, "seconds_encode", stats.seconds_encode);
    cJSON_AddNumberToObject(json, "seconds_first_token", stats.seconds_first_token);
    cJSON_AddNumberToObject(json, "seconds_per_token", passes > 0 ? stats.seconds_decode / passes : 0);
    cJSON_AddNumberToObject(json, "tokens", (double)stats.tokens);
    cJSON_AddStringToObject(json, "io", stats.io);
    cJSON_AddNumberToObject(json, "threads", stats.threads);
    return json;
}

static bool write_ids_json(const uint32_t *ids, size_t count)
{
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++)
        ok = print_text("%s%u", i == 0 ? "" : ", ", ids[i]);
    return ok;
}

static bool write_text_json(const answer_style *style, size_t count)
{
    if (!style->has_text)
        return print_text("null");
    nw_text decoder = {0};
    char    text[NW_TEXT_MAX];
    bool    ok = print_text("\"");
    for (size_t i = 0; i <= count && ok; i++) {
        uint32_t id = i < count ? style->ids[i] : NW_TEXT_END;
        ok = print_json_text(text, nw_model_decode_text(style->model, &decoder, id, text, sizeof text));
    }
    return ok && print_text("\"");
}

static bool write_candidates_json(const answer_style *style, size_t count)
{
    bool ok = print_text("\"top_logprobs\": [");
    for (size_t i = 0; i < count && ok; i++) {
        ok = print_text(i == 0 ? "[" : ", [");
        for (size_t k = 0; k < style->top_count && ok; k++) {
            const nw_candidate *c = &style->candidates[i * style->top_count + k];
            ok = print_text("%s{\"id\": %u, \"logprob\": ", k == 0 ? "" : ", ", c->id) &&
                 print_json_number(c->logprob) && print_text("}");
        }
        ok = ok && print_text("]");
    }
    return ok && print_text("], ");
}

static void write_json(const answer_style *style, size_t prompt_tokens, const nw_result *result)
{
    bool ok = print_text("{\"prompt_tokens\": %zu, \"sequences\": [{\"ids\": [", prompt_tokens) &&
              write_ids_json(style->ids, result->count) && print_text("], \"text\": ") &&
              write_text_json(style, result->count) && print_text(", \"score\": null, ");
    if (ok && style->logprobs) {
        ok = print_text("\"logprobs\": [");
        for (size_t i = 0; i < result->count && ok; i++)
            ok = (i == 0 || print_text(", ")) && print_json_number(style->logprob_list[i]);
        ok = ok && print_text("], ");
    }
    if (ok && style->top_count > 0)
        ok = write_candidates_json(style, result->count);
    cJSON *stats = stats_json(style->session);
    ok = ok && print_text("\"finish_reason\": \"%s\"}], \"stats\": ", finish_name(result->finish)) &&
         print_json(stats, false) && print_text("}\n") && print_flush();
    cJSON_Delete(stats);
    (void)ok; /* print_finish says what is wrong with stdout */
}

/* ---- together ---- */

static void end_text(answer *a)
{
    char text[NW_TEXT_MAX];
    if (a->style->has_text)
        write_text(a, text, nw_model_decode_text(a->style->model, &a->text, NW_TEXT_END, text, sizeof text));
    print_progress_clear();
    print_bytes("\n", 1);
    print_flush();
    a->style->progress->hidden = false;
}

/* The scores of one sequence are one tensor, [steps, vocab_size]. */
static int scores_begin(const answer_style *style)
{
    char     name[TENSOR_NAME_MAX + 1];
    uint64_t vocab_size = style->vocab_size;
    snprintf(name, sizeof name, "scores.%zu", style->sequences);
    return tensor_file_begin(style->scores, name, TENSOR_F32, &vocab_size, 1);
}

static nw_code generate(answer *a, const uint32_t *ids, size_t count, nw_result *result, nw_error *err)
{
    const answer_style *style = a->style;
    nw_request          request = {.input_ids = ids,
                                   .input_count = count,
                                   .max_new_tokens = style->max_new_tokens,
                                   .logprobs = style->logprobs,
                                   .top_count = style->top_count,
                                   .on_token = take_token,
                                   .user = a};
    if (style->json) {
        result->ids = style->ids;
        result->logprobs = style->logprobs ? style->logprob_list : NULL;
    }
    return count > 0 ? nw_session_generate(style->session, &request, result, err) : NW_OK;
}

int answer_prompt(answer_style *style, const uint32_t *ids, size_t count)
{
    answer    a = {.style = style, .status = -1};
    nw_result result = {.finish = NW_FINISH_STOP};
    nw_error  err = {0};
    if (style->scores != NULL && (a.status = scores_begin(style)) != -1)
        return a.status;
    nw_code rc = generate(&a, ids, count, &result, &err);
    print_progress_clear();
    bool stopped = rc == NW_E_CANCELLED || interrupted();
    if (style->scores != NULL && a.status == -1 && rc == NW_OK && !stopped)
        a.status = tensor_file_end(style->scores);
    style->sequences++;
    if (rc == NW_OK && !stopped && style->json && a.status == -1)
        write_json(style, count, &result);
    else if (!style->json && (rc == NW_OK || a.begun))
        end_text(&a);
    if (stopped)
        return EXIT_INTERRUPTED;
    return rc == NW_OK ? a.status : print_failure(&err);
}
