/* Text may stream as it is chosen. All else is kept as ids, which are smaller than the text they stand for and whose
 * room is known beforehand, and becomes text when it is written. The long parts of a JSON object are written straight
 * from the ids, because an answer as a tree of JSON values would take a hundred bytes a token that no plan has counted;
 * only the statistics, of fixed size, are a tree. */
#include "answer.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "generation_options.h"
#include "print.h"
#include "ranking.h"

/* ---- places ---- */

/* Tokens that are kept of one answer's sequences. */
static size_t tokens_kept(const answer_style *style)
{
    if (style->targets != NULL)
        return style->json ? targets_widest(style->targets, style->sequences) : 0;
    return style->sequences * style->settings->max_new_tokens;
}

static size_t answer_bytes(const answer_style *style)
{
    bool   ids = style->targets == NULL, logprobs = style->logprobs || style->targets != NULL;
    size_t token =
        style->top_count * sizeof(nw_candidate) + (logprobs ? sizeof(double) : 0) + (ids ? sizeof(uint32_t) : 0);
    size_t sequence = sizeof(answer_sequence) + (ids ? 0 : sizeof(answer_rank));
    return sizeof(answer) + style->sequences * sequence + tokens_kept(style) * token;
}

/* Carves one kind of array for all sequences of all answers; returns what is behind it. */
static char *give_candidates(const answers *a, const answer_style *style, char *at)
{
    for (size_t i = 0; i < a->count * style->sequences; i++) {
        a->list[0].sequences[i].candidates = (nw_candidate *)(void *)at;
        at += style->settings->max_new_tokens * style->top_count * sizeof(nw_candidate);
    }
    return at;
}

static char *give_logprobs(const answers *a, const answer_style *style, char *at)
{
    for (size_t i = 0; i < a->count * style->sequences; i++) {
        size_t tokens = style->settings->max_new_tokens;
        if (style->targets != NULL)
            prompts_ids(&style->targets->ids, i % style->sequences, &tokens);
        a->list[0].sequences[i].logprobs = (double *)(void *)at;
        at += tokens * sizeof(double);
    }
    return at;
}

static void give_ids(const answers *a, const answer_style *style, char *at)
{
    for (size_t i = 0; i < a->count * style->sequences; i++) {
        a->list[0].sequences[i].ids = (uint32_t *)(void *)at;
        at += style->settings->max_new_tokens * sizeof(uint32_t);
    }
}

bool answers_open(answers *a, const answer_style *style, size_t count, size_t limit, size_t most, buffer *room)
{
    size_t bytes = answer_bytes(style), fit = limit / bytes;
    a->count = fit < count ? fit : count;
    a->count = a->count > 0 ? a->count : 1;
    if (bytes > most || !buffer_reserve(room, a->count * bytes, a->count * bytes))
        return false;
    memset(room->data, 0, a->count * bytes);
    a->list = room->data;
    answer_sequence *sequences = (answer_sequence *)(a->list + a->count);
    for (size_t i = 0; i < a->count; i++)
        a->list[i].sequences = sequences + i * style->sequences;
    char *at = (char *)(sequences + a->count * style->sequences);
    for (size_t i = 0; i < a->count && style->targets != NULL; i++) {
        a->list[i].ranks = (answer_rank *)(void *)at;
        at += style->sequences * sizeof(answer_rank);
    }
    if (style->top_count > 0)
        at = give_candidates(a, style, at);
    if (style->targets == NULL ? style->logprobs : style->json)
        at = give_logprobs(a, style, at);
    if (style->targets == NULL)
        give_ids(a, style, at);
    return true;
}

/* ---- text ---- */

/* Where a piece of text goes: escaped so that a line stays one, and a field of a line. */
typedef struct {
    bool newlines, tabs; /* are escaped */
} text_form;

static bool write_piece(void *user, const char *text, size_t len)
{
    const text_form *form = user;
    if (!form->newlines)
        return print_bytes(text, len);
    size_t start = 0;
    for (size_t i = 0; i <= len; i++) {
        if (i < len && !(form->tabs && text[i] == '\t'))
            continue;
        if (!print_line_text(text + start, i - start) || (i < len && !print_bytes("\\t", 2)))
            return false;
        start = i + 1;
    }
    return true;
}

static bool write_ids(const uint32_t *ids, size_t count, const char *between)
{
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++)
        ok = print_text("%s%u", i == 0 ? "" : between, ids[i]);
    return ok;
}

static text_form form_of(const answer_style *style)
{
    bool several = style->sequences > 1;
    return (text_form){.newlines = style->lines || several, .tabs = style->lines && several};
}

bool answer_stream(const answer_style *style, answer *a, const nw_token *token)
{
    text_form form = form_of(style);
    bool      ok = true;
    if (style->has_text ? token->text_len == 0 : false)
        return true;
    if (style->terminal && !style->lines) {
        style->progress->hidden = true;
        print_progress_clear();
    }
    if (style->has_text)
        ok = write_piece(&form, token->text, token->text_len);
    else
        ok = print_text("%s%u", a->begun ? " " : "", token->id);
    a->begun = true;
    return ok && print_flush();
}

/* Sequences on lines of their own; of a line of input, fields of one line. */
static void write_plain(const answer_style *style, const answer *a)
{
    text_form form = form_of(style);
    bool      ok = true;
    for (size_t i = 0; i < style->sequences && ok; i++) {
        const answer_sequence *s = &a->sequences[i];
        if (i > 0)
            ok = print_bytes(style->lines ? "\t" : "\n", 1);
        if (!ok || a->prompt_tokens == 0)
            break; /* nothing was asked */
        if (style->has_text)
            ok = nw_model_decode_ids(style->model, style->settings, s->ids, s->count, write_piece, &form);
        else
            ok = write_ids(s->ids, s->count, " ");
    }
    (void)(ok && print_bytes("\n", 1));
}

/* ---- JSON ---- */

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

static const char *fault_name(prompt_fault fault)
{
    switch (fault) {
    case PROMPT_NOT_UTF8: return "not UTF-8";
    case PROMPT_NOT_IDS: return "not token ids";
    case PROMPT_TOO_LONG: return "too long for this budget";
    case PROMPT_FINE: break;
    }
    return "";
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
    cJSON_AddNumberToObject(json, "probe_bytes", (double)stats.probe_bytes);
    cJSON_AddNumberToObject(json, "disk_rate", stats.disk_rate);
    cJSON_AddNumberToObject(json, "seconds_load", stats.seconds_load);
    cJSON_AddNumberToObject(json, "seconds_encode", stats.seconds_encode);
    cJSON_AddNumberToObject(json, "seconds_first_token", stats.seconds_first_token);
    cJSON_AddNumberToObject(json, "seconds_per_token", passes > 0 ? stats.seconds_decode / passes : 0);
    cJSON_AddNumberToObject(json, "tokens", (double)stats.tokens);
    cJSON_AddNumberToObject(json, "passes", (double)stats.passes);
    cJSON_AddNumberToObject(json, "encode_passes", (double)stats.encode_passes);
    cJSON_AddNumberToObject(json, "drafted", (double)stats.drafted);
    cJSON_AddNumberToObject(json, "accepted", (double)stats.accepted);
    cJSON_AddStringToObject(json, "io", stats.io);
    cJSON_AddNumberToObject(json, "threads", stats.threads);
    return json;
}

static bool write_json_piece(void *user, const char *text, size_t len)
{
    (void)user;
    return print_json_text(text, len);
}

static bool write_candidates_json(const answer_style *style, const answer_sequence *s)
{
    bool ok = print_text("\"top_logprobs\": [");
    for (size_t i = 0; i < s->count && ok; i++) {
        ok = print_text(i == 0 ? "[" : ", [");
        for (size_t k = 0; k < style->top_count && ok; k++) {
            const nw_candidate *c = &s->candidates[i * style->top_count + k];
            ok = print_text("%s{\"id\": %u, \"logprob\": ", k == 0 ? "" : ", ", c->id) &&
                 print_json_number(c->logprob) && print_text("}");
        }
        ok = ok && print_text("]");
    }
    return ok && print_text("], ");
}

static bool write_sequence_json(const answer_style *style, const answer_sequence *s)
{
    bool ok = print_text("{\"ids\": [") && write_ids(s->ids, s->count, ", ") && print_text("], \"text\": ");
    if (ok && style->has_text)
        ok = print_text("\"") &&
             nw_model_decode_ids(style->model, style->settings, s->ids, s->count, write_json_piece, NULL) &&
             print_text("\"");
    else
        ok = ok && print_text("null");
    ok = ok && print_text(", \"score\": ") && print_json_number(s->score) && print_text(", ");
    if (ok && style->logprobs)
        ok = print_text("\"logprobs\": [") && print_json_numbers(s->logprobs, s->count) && print_text("], ");
    if (ok && style->top_count > 0)
        ok = write_candidates_json(style, s);
    return ok && print_text("\"finish_reason\": \"%s\"}", finish_name(s->finish));
}

static bool write_sequences_json(const answer_style *style, const answer *a)
{
    bool ok = print_text("\"sequences\": [");
    for (size_t i = 0; i < style->sequences && ok && a->fault == PROMPT_FINE; i++)
        ok = (i == 0 || print_text(", ")) && write_sequence_json(style, &a->sequences[i]);
    return ok && print_text("]");
}

static void write_json(const answer_style *style, answer *a)
{
    cJSON *stats = stats_json(style->session);
    bool   ok = print_text("{\"prompt_tokens\": %zu, ", a->prompt_tokens);
    if (ok && a->fault != PROMPT_FINE)
        ok = print_text("\"error\": \"%s\", ", fault_name(a->fault));
    if (ok)
        ok = style->targets != NULL ? ranking_write_json(style, a) : write_sequences_json(style, a);
    ok = ok && print_text(", \"stats\": ") && print_json(stats, false);
    if (ok && style->targets == NULL)
        ok = print_text(", \"settings\": ") &&
             generation_print_json(style->settings, style->seed, style->lookup_off, style->draft);
    ok = ok && print_text("}\n");
    cJSON_Delete(stats);
    (void)ok; /* print_finish says what is wrong with stdout */
}

/* ---- together ---- */

void answer_break(const answer_style *style, answer *a)
{
    if (!a->begun)
        return;
    print_progress_clear();
    print_bytes("\n", 1);
    print_flush();
    style->progress->hidden = false;
}

void answer_write(const answer_style *style, answer *a)
{
    print_progress_clear();
    if (style->json)
        write_json(style, a);
    else if (style->stream)
        print_bytes("\n", 1);
    else if (style->targets != NULL)
        ranking_write(style, a);
    else
        write_plain(style, a);
    print_flush();
    style->progress->hidden = false;
}
