/* run: text in, text out. Prompts are encoded before the session opens, because the tokenizer's memory goes back first
 * and the session's sizes are those of the prompts; in the prompt loop both must be there at once. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "advice.h"
#include "budget.h"
#include "draft_options.h"
#include "generation_options.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"
#include "serve.h"
#include "workload.h"

enum {
    KEY_LINES = 512,
    KEY_INPUT_IDS,
    KEY_LOGPROBS,
    KEY_TOP_LOGPROBS,
    KEY_SCORES,
    KEY_SCORES_KIND,
    KEY_SCORE,
    KEY_CHOICES
};
enum { USUAL_INPUT_TOKENS = 512 };

/* What answers that wait for earlier ones may take. */
#define PLACES_MAX 4096
#define PLACES_BYTES ((uint64_t)2 << 20)
#define PLACES_SHARE 64
#define PLACE_SHARE 8 /* one alone */

typedef struct {
    options            common;
    generation_options generation;
    const char        *prompt, *file, *ids;
    bool               lines, logprobs;
    size_t             top_count;
    const char        *scores;
    bool               scores_kind, scores_processed; /* was given; is not raw */
    const char        *score, *choices;
} run_options;

typedef struct {
    run_options            o;
    nw_model              *model;
    nw_session            *session;
    nw_model_info          info;
    bool                   loop;
    prompt_source          source;
    prompt_rules           rules;
    prompts                prompts;
    targets                targets;
    buffer                 room[2];
    progress               progress;
    nw_generation_settings settings;
    answer_style           style;
    server                 server;
    workload               work;
    tensor_file            scores;
    draft_model            draft;
} run;

/* ---- options
 * ---------------------------------------------------------------------------------------------------------- */

static const struct argp_option run_argp_options[] = {
    {0, 0, 0, 0, "Prompt:", 2},
    {"prompt", 'p', "TEXT", 0, "The prompt, as the argument PROMPT is", 2},
    {"file", 'f', "FILE", 0, "Read the prompt from FILE, all of it; - is standard input", 2},
    {"lines", KEY_LINES, 0, 0, "Each line is a prompt of its own and gets one line of output, in order", 2},
    {"input-ids", KEY_INPUT_IDS, "IDS", 0,
     "Token ids instead of text, used as they are: \"13 959 1\"; - reads them as a prompt would be", 2},
    {"score", KEY_SCORE, "TEXT", 0, "Do not answer: print the log-probability of TEXT as the answer", 2},
    {"choices", KEY_CHOICES, "FILE", 0,
     "Do not answer: rank the answers in FILE, one a line, best first, each with its log-probability and the mean over "
     "its tokens",
     2},
    {"logprobs", KEY_LOGPROBS, 0, 0, "With --json: the log probability of each token", 6},
    {"top-logprobs", KEY_TOP_LOGPROBS, "K", 0, "With --json: the K most probable tokens at each step", 6},
    {"scores", KEY_SCORES, "FILE", 0,
     "Write the scores of every step to FILE.safetensors: scores.0, scores.1, ... [steps, vocab_size] f32, one for "
     "each prompt; these then come one at a time",
     6},
    {"scores-kind", KEY_SCORES_KIND, "KIND", 0,
     "raw (default): the model's logits; processed: what tokens are chosen from", 6},
    {0},
};

/* What fits together, when all is parsed. */
static error_t check_options(run_options *o)
{
    options *common = &o->common;
    bool     judges = o->score != NULL || o->choices != NULL;
    if (common->model == NULL)
        return options_fail(common, "no model: -m MODEL is missing");
    if ((o->prompt != NULL) + (o->file != NULL) + (o->ids != NULL && strcmp(o->ids, "-") != 0) > 1)
        return options_fail(common, "a prompt, --file and --input-ids exclude each other");
    if ((o->logprobs || o->top_count > 0) && !common->json)
        return options_fail(common, "%s needs --json", o->logprobs ? "--logprobs" : "--top-logprobs");
    if (o->scores != NULL && (!tensor_file_is_named(o->scores) || tensor_file_is_npy(o->scores)))
        return options_fail(common, "--scores: '%s' must end in .safetensors: it holds sequences of different lengths",
                            o->scores);
    if (o->scores_kind && o->scores == NULL)
        return options_fail(common, "--scores-kind needs --scores");
    if (o->generation.prefix != NULL && o->ids != NULL)
        return options_fail(common, "--prefix is text: it cannot be put before --input-ids");
    if (o->score != NULL && o->choices != NULL)
        return options_fail(common, "--score and --choices exclude each other");
    if (judges && (o->scores != NULL || o->logprobs || o->top_count > 0))
        return options_fail(common, "%s writes no answer that %s could be of",
                            o->score != NULL ? "--score" : "--choices",
                            o->scores != NULL ? "--scores"
                            : o->logprobs     ? "--logprobs"
                                              : "--top-logprobs");
    if (o->generation.draft != NULL && (o->generation.lookup_off || judges))
        return options_fail(common, "--draft guesses answers: it does not go with %s",
                            o->generation.lookup_off ? "--lookup off" : "answers that are given");
    if (judges && (generation_given(&o->generation) || common->session.max_output_tokens > 0))
        return options_fail(common, "%s judges answers: no options that choose tokens go with it",
                            o->score != NULL ? "--score" : "--choices");
    return 0;
}

static error_t parse_run(int key, char *arg, struct argp_state *state)
{
    run_options *o = (run_options *)state->input;
    uint64_t     top_count;
    switch (key) {
    case ARGP_KEY_INIT:
        o->generation.common = &o->common;
        for (size_t i = 0; i < 3; i++)
            state->child_inputs[i] = &o->common;
        state->child_inputs[3] = &o->generation;
        return 0;
    case ARGP_KEY_ARG:
    case 'p':
        if (o->prompt != NULL)
            return options_fail(&o->common, "more than one prompt: quote a prompt of several words");
        o->prompt = arg;
        return 0;
    case 'f': o->file = arg; return 0;
    case KEY_LINES: o->lines = true; return 0;
    case KEY_INPUT_IDS: o->ids = arg; return 0;
    case KEY_LOGPROBS: o->logprobs = true; return 0;
    case KEY_TOP_LOGPROBS:
        if (!options_number(arg, 1, NW_CANDIDATES_MAX, &top_count))
            return options_fail(&o->common, "--top-logprobs: '%s' is not a number from 1 to %d", arg,
                                NW_CANDIDATES_MAX);
        o->top_count = (size_t)top_count;
        return 0;
    case KEY_SCORES: o->scores = arg; return 0;
    case KEY_SCORES_KIND:
        o->scores_kind = true;
        o->scores_processed = strcmp(arg, "processed") == 0;
        if (!o->scores_processed && strcmp(arg, "raw") != 0)
            return options_fail(&o->common, "--scores-kind: '%s' is not raw or processed", arg);
        return 0;
    case KEY_SCORE: o->score = arg; return 0;
    case KEY_CHOICES: o->choices = arg; return 0;
    case ARGP_KEY_END: return check_options(o);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0},
    {&options_session_argp, 0, NULL, 0},
    {&options_output_argp, 0, NULL, 0},
    {&generation_argp, 0, NULL, 0},
    {0},
};

static const struct argp run_argp = {
    .options = run_argp_options,
    .parser = parse_run,
    .args_doc = "[PROMPT]",
    .doc = "Runs a model on a prompt and writes the answer to standard output, holding at most BUDGET of memory: what "
           "does not fit "
           "is read from disk again for each token. A smaller budget is slower, and never changes the answer."
           "\vWithout PROMPT, --file and --input-ids the prompt is read from standard input; on a terminal, line by "
           "line in a loop. "
           "Without --budget the budget is 'auto': what the machine has available, less an eighth.\n\n"
           "Examples:\n"
           "  narrows run -m flan-t5-xl -b 1G \"translate English to German: Good morning.\"\n"
           "  narrows run -m flan-t5-xl -b 1G --lines -f questions.txt > answers.txt\n"
           "  narrows run -m t5-base --task translation_en_to_de --lines -f english.txt\n"
           "  narrows run -m flan-t5-xl --choices labels.txt \"Is this review good? Fine work.\"",
    .children = children,
};

/* ---- session ---- */

/* A budget under which nothing runs at all is refused before the tokenizer is loaded, when nobody knows yet how long
 * the prompts are: what is named does for any ordinary one. Returns -1 to go on. */
static int check_budget_early(run *r)
{
    nw_session_options o = r->o.common.session;
    o.max_input_tokens = o.max_output_tokens = 1;
    if (budget_smallest(r->model, &o) <= o.budget_bytes)
        return -1;
    o = r->o.common.session;
    if (o.max_input_tokens == 0)
        o.max_input_tokens = USUAL_INPUT_TOKENS;
    return lanes_refuse(r->model, &o, 1, budget_smallest(r->model, &o));
}

/* Targets that are judged together: as many as lanes are asked for, or fit. */
static size_t choose_chunk(const run *r)
{
    nw_session_options o = r->o.common.session;
    size_t             chunk = r->targets.ids.count < SERVE_CHUNK_MAX ? r->targets.ids.count : SERVE_CHUNK_MAX;
    size_t             asked = r->o.generation.lanes;
    if (asked > 0)
        return asked < chunk ? asked : chunk;
    for (; chunk > 1; chunk /= 2) {
        o.max_lanes = o.max_choices = chunk;
        if (budget_smallest(r->model, &o) <= o.budget_bytes)
            break;
    }
    return chunk;
}

/* What the session is for, when the longest prompt is known. */
static void set_work(run *r)
{
    nw_session_options *o = &r->o.common.session;
    r->work = (workload){.prompts = r->loop ? NULL : &r->prompts,
                         .count = r->loop ? 1 : r->prompts.count,
                         .width = generation_width(&r->settings),
                         .lanes = r->o.generation.lanes,
                         .passes = generation_passes(&r->settings),
                         .columns_more = generation_columns(&r->o.generation, &r->settings)};
    o->generation = &r->settings;
    r->style.sequences = r->settings.num_return_sequences;
    if (r->style.targets != NULL) {
        o->generation = NULL;
        o->max_choices = r->style.chunk = r->work.width = choose_chunk(r);
        r->style.sequences = r->targets.ids.count;
        r->work.columns_more = 0;
        r->work.columns_each = targets_widest(&r->targets, r->style.chunk);
        r->work.passes = 1;
    }
    if (r->o.scores != NULL) /* rows of one sequence stand one behind the other */
        r->work.lanes = 1;
}

/* Prompts among lines that the budget has no room for fail alone, as long as there are others. */
static void drop_long_prompts(run *r)
{
    nw_session_options o = r->o.common.session;
    size_t             fit = 0, not = r->prompts.longest + 1;
    o.max_lanes = r->work.width;
    o.max_input_tokens = r->prompts.longest;
    if (!r->o.lines || r->prompts.longest < 2 || budget_smallest(r->model, &o) <= o.budget_bytes)
        return;
    while (not -fit > 1) {
        o.max_input_tokens = fit + (not -fit) / 2;
        uint64_t needed = budget_smallest(r->model, &o);
        if (needed > 0 && needed <= o.budget_bytes)
            fit = o.max_input_tokens;
        else
            not = o.max_input_tokens;
    }
    for (size_t i = 0; i < r->prompts.count; i++) {
        size_t count;
        prompts_ids(&r->prompts, i, &count);
        if (count > 0 && count <= fit) {
            prompts_drop_longer(&r->prompts, &r->source, fit);
            return;
        }
    }
}

static int make_places(run *r)
{
    uint64_t budget = r->o.common.session.budget_bytes, limit = budget / PLACES_SHARE;
    size_t   count = r->work.count < PLACES_MAX ? r->work.count : PLACES_MAX;
    if (limit > PLACES_BYTES)
        limit = PLACES_BYTES;
    if (r->loop || r->o.scores != NULL)
        count = 1;
    if (serve_open(&r->server, &r->style, count, (size_t)limit, (size_t)(budget / PLACE_SHARE), r->room))
        return -1;
    if (r->style.targets != NULL)
        print_error("--choices: this budget has no room for so many answers");
    else
        print_error("--max-new-tokens %u: this budget has no room for so long an answer", r->settings.max_new_tokens);
    return EXIT_BUDGET;
}

/* The model that guesses takes its part of the budget first; what is chosen then is for what it leaves. */
static int start_draft(run *r)
{
    nw_session_options *o = &r->o.common.session;
    workload            left = r->work;
    int                 status = draft_start(&r->draft, o);
    o->draft = r->draft.session;
    left.lanes = o->max_lanes;
    if (status == -1 && !lanes_fill(r->model, &left, o) && r->work.lanes == 0) {
        left.lanes = left.width; /* one prompt at a time is what it is best for */
        status = lanes_choose(r->model, &left, o);
    } else if (status == -1 && budget_smallest(r->model, o) > o->budget_bytes)
        return lanes_refuse(r->model, o, r->work.width, budget_smallest(r->model, o));
    return status;
}

/* After the prompts are known, or for the loop. Returns -1 or the exit status. */
static int open_session(run *r)
{
    nw_session_options *o = &r->o.common.session;
    nw_error            err = {0};
    set_work(r);
    drop_long_prompts(r);
    if (!r->loop)
        o->max_input_tokens = r->prompts.longest > 0 ? r->prompts.longest : 1;
    o->keep_tokenizer = r->loop;
    int status = make_places(r);
    if (status == -1)
        status = lanes_choose(r->model, &r->work, o);
    if (status == -1 && r->o.generation.draft != NULL)
        status = start_draft(r);
    if (status != -1)
        return status;
    advise_pack(r->model, r->o.common.model, o);
    nw_code rc = nw_session_open(r->model, o, &r->session, &err);
    while (rc == NW_E_BUDGET && err.bytes_needed > o->budget_bytes && o->draft == NULL && lanes_reduce(&r->work, o))
        rc = nw_session_open(r->model, o, &r->session, &err);
    if (rc == NW_E_BUDGET && err.bytes_needed > o->budget_bytes)
        return lanes_refuse(r->model, o, r->work.width, err.bytes_needed);
    if (rc != NW_OK)
        return print_failure(&err);
    r->style.session = r->session;
    r->style.stream = !r->style.json && r->style.targets == NULL && r->style.sequences == 1 && r->work.width == 1 &&
                      (!r->style.lines || (r->style.terminal && o->max_lanes == 1));
    progress_start(&r->progress, r->o.common.quiet, r->session);
    r->progress.lines = r->o.lines && !r->loop ? r->prompts.count : 0;
    nw_session_on_progress(r->session, progress_update, &r->progress);
    return -1;
}

static int open_model(run *r)
{
    int status = options_open_model(&r->o.common, &r->model);
    if (status == -1) {
        nw_model_describe(r->model, &r->info);
        note_lossy(r->model);
    }
    return status;
}

/* Loads the table of pieces, without which ids cannot become text. For ids alone the answer may be ids too. */
static int find_text(run *r)
{
    nw_tokenizer_info tokenizer = {0};
    nw_error          err = {0};
    nw_code           rc = nw_model_tokenizer_describe(r->model, &tokenizer, &err);
    size_t            len;
    r->style.has_text =
        rc == NW_OK && strcmp(tokenizer.kind, "none") != 0 && nw_model_piece(r->model, 0, &len, &err) != NULL;
    bool words = generation_has_words(&r->o.generation) || r->settings.stop_strings.count > 0;
    if (rc == NW_OK && !r->style.has_text && r->o.ids != NULL && words) {
        print_error("%s is text: it needs the model's tokenizer", r->settings.stop_strings.count > 0   ? "--stop"
                                                                  : r->o.generation.forced_bos != NULL ? "--forced-bos"
                                                                                                       : "--bad-words");
        return EXIT_TOKENIZER;
    }
    if (rc == NW_OK || r->o.ids != NULL)
        return -1;
    return print_text_failure(&err);
}

/* ---- answers ---- */

static int answer_all(run *r)
{
    interrupt_watch(r->session);
    int status = serve_all(&r->server, &r->prompts);
    interrupt_watch(NULL);
    return status;
}

/* One prompt after another from the terminal; a mistake in one is said, and the next one asked for. */
static int answer_loop(run *r)
{
    prompt_source source = {.lines = true};
    buffer        text = {0};
    int           status = prompts_open(&source);
    bool          more = true;
    while (status == -1 && more && print_flush()) {
        fputs("> ", stderr);
        fflush(stderr);
        prompts_clear(&r->prompts);
        int line_status = prompts_read_one(&r->prompts, r->model, &r->rules, &source, &text, &more);
        if (line_status == EXIT_IO || line_status == EXIT_BUDGET)
            status = line_status;
        if (line_status != -1 || r->prompts.longest == 0)
            continue;
        progress_start(&r->progress, r->o.common.quiet, r->session);
        status = answer_all(r);
        if (status == EXIT_USAGE)
            status = -1;
    }
    fputc('\n', stderr);
    buffer_free(&text);
    return status;
}

/* ---- together ---- */

static void set_style(run *r)
{
    const run_options *o = &r->o;
    r->style = (answer_style){.model = r->model,
                              .progress = &r->progress,
                              .settings = &r->settings,
                              .seed = o->generation.seed,
                              .lookup_off = o->generation.lookup_off,
                              .draft = o->generation.draft,
                              .targets = o->score != NULL || o->choices != NULL ? &r->targets : NULL,
                              .json = o->common.json,
                              .logprobs = o->logprobs,
                              .lines = o->lines,
                              .terminal = isatty(STDOUT_FILENO) == 1,
                              .top_count = o->top_count,
                              .scores = o->scores != NULL ? &r->scores : NULL,
                              .scores_processed = o->scores_processed,
                              .vocab_size = r->info.vocab_size};
}

static void set_source(run *r)
{
    const run_options *o = &r->o;
    bool               from_source = o->ids == NULL || strcmp(o->ids, "-") == 0;
    r->source = (prompt_source){.text = from_source ? o->prompt : o->ids, .file = o->file, .lines = o->lines};
    r->loop = from_source && r->source.text == NULL && r->source.file == NULL && isatty(STDIN_FILENO) == 1;
    r->rules = (prompt_rules){.as_ids = o->ids != NULL,
                              .empty_allowed = o->lines || r->loop,
                              .faults_allowed = o->lines && !r->loop,
                              .budget_bytes = o->common.session.budget_bytes,
                              .max_input_tokens = o->common.session.max_input_tokens,
                              .vocab_size = r->info.vocab_size,
                              .prefix = r->settings.prefix,
                              .prefix_len = o->ids != NULL ? 0 : r->settings.prefix_len};
}

/* Searches report no single steps. */
static int check_reports(const run *r)
{
    const run_options *o = &r->o;
    const char        *what = o->scores != NULL ? "--scores" : o->top_count > 0 ? "--top-logprobs" : NULL;
    if (what != NULL && r->settings.num_beams > 1) {
        print_error("%s tells of single steps, which a search of %u beams does not have", what, r->settings.num_beams);
        return EXIT_USAGE;
    }
    if (o->scores != NULL && r->settings.num_return_sequences > 1) {
        print_error("--scores takes one sequence for each prompt, not %u", r->settings.num_return_sequences);
        return EXIT_USAGE;
    }
    if (o->generation.draft != NULL && r->settings.num_beams > 1) {
        print_error("--draft guesses for greedy search and samples, not for %u beams", r->settings.num_beams);
        return EXIT_USAGE;
    }
    if (o->scores != NULL && o->generation.lanes > 1) {
        print_error("--scores takes one prompt at a time: it does not go with --lanes %zu", o->generation.lanes);
        return EXIT_USAGE;
    }
    if (o->scores != NULL && r->loop) {
        print_error("--scores needs a prompt, --file or --input-ids");
        return EXIT_USAGE;
    }
    return -1;
}

/* All that can be refused before any work, then what turns text into ids. */
static int prepare(run *r)
{
    nw_session_options *o = &r->o.common.session;
    int                 status = generation_settle(&r->o.generation, r->model, &r->settings);
    if (status != -1)
        return status;
    set_style(r);
    set_source(r);
    status = check_reports(r);
    if (status == -1 && r->o.generation.draft != NULL)
        status = draft_open(&r->draft, r->o.generation.draft, &r->o.common);
    if (r->style.targets == NULL)
        o->max_output_tokens = r->settings.max_new_tokens;
    if (status == -1)
        status = check_budget_early(r);
    if (status == -1)
        status = find_text(r);
    if (status == -1)
        status = generation_resolve(&r->o.generation, r->model, &r->settings);
    if (status == -1 && r->style.targets != NULL)
        status = targets_read(&r->targets, r->model, &r->rules, r->o.score, r->o.choices);
    if (r->style.targets != NULL)
        o->max_output_tokens = r->targets.ids.longest;
    return status;
}

static int run_prompts(run *r)
{
    options *o = &r->o.common;
    int      status = prepare(r);
    if (status == -1 && r->loop) {
        if (o->session.max_input_tokens == 0)
            o->session.max_input_tokens = USUAL_INPUT_TOKENS;
        r->rules.max_input_tokens = o->session.max_input_tokens;
        status = open_session(r);
        return status == -1 ? answer_loop(r) : status;
    }
    if (status == -1)
        status = prompts_read(&r->prompts, r->model, &r->rules, &r->source);
    nw_model_tokenizer_release(r->model);
    if (status == -1 && r->o.scores != NULL) {
        interrupt_hold();
        status = tensor_file_open(&r->scores, r->o.scores, r->prompts.count);
    }
    if (status == -1)
        status = open_session(r);
    if (status == -1)
        status = answer_all(r);
    bool complete = status == -1 && print_flush(); /* stdout that failed has ended the answers early */
    if (complete && r->o.scores != NULL)
        status = tensor_file_finish(&r->scores);
    return status == -1 || status == EXIT_DONE ? r->prompts.status : status;
}

int command_run(int argc, char **argv)
{
    run r = {.o.common.name = "narrows run", .prompts.status = -1};
    int status = options_parse(&run_argp, argc, argv, &r.o.common, &r.o);
    if (status != -1) {
        generation_free(&r.o.generation);
        return status;
    }
    interrupt_setup();
    status = options_budget(&r.o.common);
    if (status == -1)
        status = open_model(&r);
    if (status == -1)
        status = run_prompts(&r);
    status = budget_end(r.session, &r.o.common, status, progress_summary);
    tensor_file_abandon(&r.scores);
    nw_session_close(r.session);
    draft_close(&r.draft);
    nw_model_close(r.model);
    prompts_free(&r.prompts);
    targets_free(&r.targets);
    generation_free(&r.o.generation);
    buffer_free(&r.room[0]);
    buffer_free(&r.room[1]);
    return print_finish(status);
}
