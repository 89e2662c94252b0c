/* A prompt goes in when there is a place for its answer: places are in the order of the prompts, so a slow answer holds
 * up those behind it only when all places are full. What is in memory is bounded by the places, whatever the number of
 * prompts. */
#include "serve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "interrupt.h"
#include "print.h"

/* One request: its answer, and which of its sequences come from it. */
typedef struct {
    server *server;
    answer *answer;
    size_t  first, count;
} part;

/* Where the next request comes from. */
typedef struct {
    const prompts *prompts;
    size_t         next, next_part; /* to submit */
    size_t         written;         /* prompts */
} queue;

bool serve_open(server *s, answer_style *style, size_t count, size_t limit, size_t most, buffer room[2])
{
    *s = (server){.style = style, .part_count = 1};
    if (style->targets != NULL)
        s->part_count = (style->sequences + style->chunk - 1) / style->chunk;
    if (!answers_open(&s->answers, style, count, limit, most, &room[0]))
        return false;
    size_t bytes = s->answers.count * s->part_count * sizeof(part);
    if (bytes > most || !buffer_reserve(&room[1], bytes, bytes))
        return false;
    memset(room[1].data, 0, bytes);
    s->parts = room[1].data;
    return true;
}

/* ---- what the session tells ---- */

/* The scores of one sequence are one tensor, [steps, vocab_size]. */
static int begin_scores(const answer_style *style, size_t prompt)
{
    char     name[TENSOR_NAME_MAX + 1];
    uint64_t vocab_size = style->vocab_size;
    snprintf(name, sizeof name, "scores.%zu", prompt);
    return tensor_file_begin(style->scores, name, TENSOR_F32, &vocab_size, 1);
}

static int write_scores(const answer_style *style, const answer *a, const nw_token *token)
{
    int status = token->index == 0 ? begin_scores(style, a->prompt) : -1;
    if (status == -1)
        status = tensor_file_write(style->scores, style->scores_processed ? token->scores : token->logits,
                                   style->vocab_size);
    if (status == -1 && token->finish != NW_FINISH_NONE)
        status = tensor_file_end(style->scores);
    return status;
}

/* One new token: its scores to their file, its candidates to the JSON to come, its text to stdout. */
static bool take_token(void *user, const nw_token *token)
{
    const part         *p = user;
    server             *s = p->server;
    const answer_style *style = s->style;
    answer_sequence    *sequence = &p->answer->sequences[p->first + token->sequence];
    if (style->scores != NULL)
        s->status = write_scores(style, p->answer, token);
    if (s->status != -1)
        return false;
    if (token->top_count > 0 && sequence->candidates != NULL)
        memcpy(sequence->candidates + token->index * style->top_count, token->top,
               token->top_count * sizeof *token->top);
    if (style->stream)
        s->failed = !answer_stream(style, p->answer, token);
    return !s->failed;
}

static void take_sequence(void *user, const nw_sequence *q)
{
    const part         *p = user;
    const answer_style *style = p->server->style;
    answer_sequence    *sequence = &p->answer->sequences[p->first + q->sequence];
    sequence->count = q->count;
    sequence->finish = q->finish;
    sequence->score = q->score;
    if (style->targets != NULL) {
        sequence->score = 0;
        for (size_t i = 0; i < q->count; i++)
            sequence->score += q->logprobs[i];
        if (isnan(sequence->score))
            sequence->score = -INFINITY;
    }
    if (sequence->ids != NULL)
        memcpy(sequence->ids, q->ids, q->count * sizeof *q->ids);
    if (sequence->logprobs != NULL)
        memcpy(sequence->logprobs, q->logprobs, q->count * sizeof *q->logprobs);
    p->answer->left--;
}

/* ---- requests ---- */

static nw_request make_request(part *p, const uint32_t *ids, size_t count)
{
    const answer_style *style = p->server->style;
    nw_request          q = {.input_ids = ids,
                             .input_count = count,
                             .logprobs = style->logprobs,
                             .top_count = style->top_count,
                             .settings = style->settings,
                             .seed = style->seed,
                             .lookup_off = style->lookup_off,
                             .on_token = take_token,
                             .on_sequence = take_sequence,
                             .user = p};
    return q;
}

/* Submits one request of a prompt. NW_E_MEMORY: the session is full for now. */
static nw_code submit(part *p, const uint32_t *ids, size_t count, nw_error *err)
{
    const answer_style *style = p->server->style;
    const targets      *t = style->targets;
    nw_request          q = make_request(p, ids, count);
    uint64_t            id;
    size_t              lens[SERVE_CHUNK_MAX], ids_before;
    if (t == NULL)
        return nw_session_submit(style->session, &q, &id, err);
    q.choice_ids = prompts_ids(&t->ids, p->first, &ids_before);
    for (size_t i = 0; i < p->count; i++)
        prompts_ids(&t->ids, p->first + i, &lens[i]);
    q.choice_lens = lens;
    q.choice_count = p->count;
    q.logprobs = true;
    q.settings = NULL;
    q.on_token = NULL;
    return nw_session_submit(style->session, &q, &id, err);
}

/* The place of the next prompt's answer. */
static answer *take_place(server *s, const queue *q, size_t count)
{
    answer *a = &s->answers.list[q->next % s->answers.count];
    if (q->next_part > 0)
        return a;
    a->prompt = q->next;
    a->prompt_tokens = count;
    a->fault = prompts_fault(q->prompts, q->next);
    a->begun = false;
    a->left = count > 0 ? s->style->sequences : 0;
    for (size_t i = 0; i < s->style->sequences; i++) {
        answer_sequence *sequence = &a->sequences[i];
        sequence->count = 0;
        sequence->score = (double)NAN;
        sequence->finish = NW_FINISH_STOP;
    }
    return a;
}

/* Puts as many prompts into the session as it takes. Returns -1 or the exit status. */
static int fill(server *s, queue *q)
{
    while (q->next < q->prompts->count && q->next - q->written < s->answers.count) {
        size_t          count;
        const uint32_t *ids = prompts_ids(q->prompts, q->next, &count);
        answer         *a = take_place(s, q, count);
        size_t          place = (size_t)(a - s->answers.list), chunk = s->style->chunk;
        size_t          first = q->next_part * chunk, left = s->style->sequences - first;
        part           *p = (part *)s->parts + place * s->part_count + q->next_part;
        nw_error        err = {0};
        *p = (part){.server = s, .answer = a, .first = first, .count = left < chunk ? left : chunk};
        nw_code rc = count > 0 ? submit(p, ids, count, &err) : NW_OK;
        if (rc == NW_E_MEMORY)
            return -1;
        if (rc != NW_OK)
            return print_failure(&err);
        if (count > 0 && ++q->next_part < s->part_count)
            continue;
        q->next++;
        q->next_part = 0;
    }
    return -1;
}

/* An empty answer has scores too: none. */
static int write_answer(server *s, answer *a)
{
    int status = -1;
    if (s->style->scores != NULL && a->prompt_tokens == 0) {
        status = begin_scores(s->style, a->prompt);
        if (status == -1)
            status = tensor_file_end(s->style->scores);
    }
    if (status == -1)
        answer_write(s->style, a);
    return status;
}

static int write_finished(server *s, queue *q)
{
    int status = -1;
    while (status == -1 && q->written < q->next) {
        answer *a = &s->answers.list[q->written % s->answers.count];
        if (a->left > 0)
            break;
        status = write_answer(s, a);
        q->written++;
        s->style->progress->lines_done = q->written;
        if (!print_flush())
            s->failed = true;
    }
    return status;
}

static int step(server *s)
{
    nw_error err = {0};
    size_t   live;
    nw_code  rc = nw_session_step(s->style->session, &live, &err);
    if (rc == NW_E_CANCELLED || interrupted())
        return EXIT_INTERRUPTED;
    if (rc != NW_OK) {
        print_progress_clear();
        return print_failure(&err);
    }
    return s->status;
}

int serve_all(server *s, const prompts *p)
{
    queue q = {.prompts = p};
    int   status = -1;
    s->status = -1;
    s->failed = false;
    while (status == -1 && !s->failed && q.written < p->count) {
        status = interrupted() ? EXIT_INTERRUPTED : fill(s, &q);
        if (status == -1)
            status = write_finished(s, &q);
        if (status == -1 && !s->failed &&
            (q.written < q.next || q.next_part > 0)) /* even of one prompt some parts wait */
            status = step(s);
        if (status == -1 && !s->failed)
            status = write_finished(s, &q);
    }
    print_progress_clear();
    if (status != -1 && q.written < p->count)
        answer_break(s->style, &s->answers.list[q.written % s->answers.count]);
    return status;
}
