/* run: text in, text out. Prompts are encoded before the session opens, because the tokenizer's memory goes back first
 * and the session's sizes are those of the prompts; in the prompt loop both must be there at once. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "advice.h"
#include "answer.h"
#include "budget.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"

enum { KEY_LINES = 512, KEY_INPUT_IDS, KEY_LOGPROBS, KEY_TOP_LOGPROBS, KEY_SCORES, KEY_SCORES_KIND };
enum { USUAL_INPUT_TOKENS = 512, NEW_TOKENS = 256, FEW_TOKENS = 32, ROOM_SHARE = 8 };

typedef struct {
    options     common;
    const char *prompt, *file, *ids;
    bool        lines, logprobs;
    size_t      top_count;
    const char *scores;
    bool        scores_kind, scores_processed; /* was given; is not raw */
} run_options;

typedef struct {
    run_options   o;
    nw_model     *model;
    nw_session   *session;
    nw_model_info info;
    bool          loop;
    prompt_rules  rules;
    prompts       prompts;
    buffer        room;
    progress      progress;
    answer_style  style;
    tensor_file   scores;
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
    {"logprobs", KEY_LOGPROBS, 0, 0, "With --json: the log probability of each token", 5},
    {"top-logprobs", KEY_TOP_LOGPROBS, "K", 0, "With --json: the K most probable tokens at each step", 5},
    {"scores", KEY_SCORES, "FILE", 0,
     "Write the scores of every step to FILE.safetensors: scores.0, scores.1, ... [steps, vocab_size] f32, one for "
     "each sequence",
     5},
    {"scores-kind", KEY_SCORES_KIND, "KIND", 0,
     "raw (default): the model's logits; processed: what tokens are chosen from", 5},
    {0},
};

static error_t parse_run(int key, char *arg, struct argp_state *state)
{
    run_options *o = (run_options *)state->input;
    uint64_t     top_count;
    switch (key) {
    case ARGP_KEY_INIT:
        for (size_t i = 0; i < 3; i++)
            state->child_inputs[i] = &o->common;
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
    case ARGP_KEY_END:
        if (o->common.model == NULL)
            return options_fail(&o->common, "no model: -m MODEL is missing");
        if ((o->prompt != NULL) + (o->file != NULL) + (o->ids != NULL && strcmp(o->ids, "-") != 0) > 1)
            return options_fail(&o->common, "a prompt, --file and --input-ids exclude each other");
        if ((o->logprobs || o->top_count > 0) && !o->common.json)
            return options_fail(&o->common, "%s needs --json", o->logprobs ? "--logprobs" : "--top-logprobs");
        if (o->scores != NULL && (!tensor_file_is_named(o->scores) || tensor_file_is_npy(o->scores)))
            return options_fail(&o->common,
                                "--scores: '%s' must end in .safetensors: it holds sequences of different "
                                "lengths",
                                o->scores);
        if (o->scores_kind && o->scores == NULL)
            return options_fail(&o->common, "--scores-kind needs --scores");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0}, {&options_session_argp, 0, NULL, 0}, {&options_output_argp, 0, NULL, 0}, {0}};

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
           "  narrows run -m flan-t5-xl -b 1G --lines -f questions.txt > answers.txt",
    .children = children,
};

/* ---- session
 * ---------------------------------------------------------------------------------------------------------- */

/* The smallest budget for so many tokens; 0: unknown. */
static uint64_t smallest_budget(const run *r, size_t in, size_t out)
{
    nw_session_options o = r->o.common.session;
    o.max_input_tokens = in;
    o.max_output_tokens = out;
    return budget_smallest(r->model, &o);
}

/* The one line for a budget that is too small: what these prompts need, and what shorter answers would. */
static int print_budget_needed(const run *r, size_t in, uint64_t needed)
{
    const nw_session_options *o = &r->o.common.session;
    char                      budget_text[16], needed_text[16], few_text[16];
    uint64_t                  few = o->max_output_tokens > FEW_TOKENS ? smallest_budget(r, in, FEW_TOKENS) : 0;
    nw_bytes_format(o->budget_bytes, false, budget_text);
    nw_bytes_format(needed, true, needed_text);
    nw_bytes_format(few, true, few_text);
    bool helps = few > 0 && few < needed && strcmp(few_text, needed_text) != 0;
    print_error("budget %s is too small: needs %s for %zu tokens in, %zu out%s%s%s", budget_text, needed_text, in,
                o->max_output_tokens, helps ? "; " : "", helps ? few_text : "", helps ? " with -n 32" : "");
    return EXIT_BUDGET;
}

/* A budget under which nothing runs at all is refused before the tokenizer is loaded, when nobody knows yet how long
 * the prompts are: what is named does for any ordinary one. Returns -1 to go on. */
static int check_budget_early(const run *r)
{
    const nw_session_options *o = &r->o.common.session;
    size_t                    in = o->max_input_tokens > 0 ? o->max_input_tokens : USUAL_INPUT_TOKENS;
    if (smallest_budget(r, 1, 1) <= o->budget_bytes)
        return -1;
    return print_budget_needed(r, in, smallest_budget(r, in, o->max_output_tokens));
}

/* After the prompts are known, or for the loop. Returns -1 or the exit status. */
static int open_session(run *r)
{
    nw_session_options *o = &r->o.common.session;
    if (!r->loop)
        o->max_input_tokens = r->prompts.longest > 0 ? r->prompts.longest : 1;
    o->keep_tokenizer = r->loop;
    r->style = (answer_style){.model = r->model,
                              .progress = &r->progress,
                              .json = r->o.common.json,
                              .logprobs = r->o.logprobs,
                              .lines = r->o.lines,
                              .has_text = r->style.has_text,
                              .terminal = isatty(STDOUT_FILENO) == 1,
                              .max_new_tokens = o->max_output_tokens,
                              .top_count = r->o.top_count,
                              .scores = r->o.scores != NULL ? &r->scores : NULL,
                              .scores_processed = r->o.scores_processed,
                              .vocab_size = r->info.vocab_size};
    if (!answer_room(&r->style, &r->room, o->budget_bytes / ROOM_SHARE)) {
        print_error("--max-new-tokens %zu: this budget has no room for so long a JSON answer", o->max_output_tokens);
        return EXIT_BUDGET;
    }
    advise_pack(r->model, r->o.common.model, o);
    nw_error err = {0};
    nw_code  rc = nw_session_open(r->model, o, &r->session, &err);
    if (rc == NW_E_BUDGET && err.bytes_needed > o->budget_bytes)
        return print_budget_needed(r, o->max_input_tokens, err.bytes_needed);
    if (rc != NW_OK)
        return print_failure(&err);
    r->style.session = r->session;
    progress_start(&r->progress, r->o.common.quiet, r->session);
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
    if (rc == NW_OK || r->o.ids != NULL)
        return -1;
    return print_text_failure(&err);
}

/* ---- answers
 * ---------------------------------------------------------------------------------------------------------- */

static int answer_all(run *r)
{
    int status = -1;
    interrupt_watch(r->session);
    for (size_t i = 0; i < r->prompts.count && status == -1; i++) {
        size_t          count;
        const uint32_t *ids = prompts_ids(&r->prompts, i, &count);
        status = answer_prompt(&r->style, ids, count);
        if (!print_flush())
            break;
    }
    interrupt_watch(NULL);
    return status;
}

/* One prompt after another from the terminal; a mistake in one is said, and the next one asked for. */
static int answer_loop(run *r)
{
    prompt_source source = {.lines = true};
    buffer        text = {0};
    int           status = prompts_open(&source);
    while (status == -1) {
        bool more;
        fputs("> ", stderr);
        fflush(stderr);
        int line_status = prompts_next(&source, &text, prompts_text_limit(r->rules.budget_bytes), &more);
        if (line_status == -1 && !more)
            break;
        if (line_status == EXIT_IO || line_status == EXIT_BUDGET)
            status = line_status;
        if (line_status != -1 || text.used == 0)
            continue;
        prompts_clear(&r->prompts);
        if (prompts_add(&r->prompts, r->model, &r->rules, NULL, text.data, text.used) == -1) {
            progress_start(&r->progress, r->o.common.quiet, r->session);
            status = answer_all(r);
            if (status == EXIT_USAGE)
                status = -1;
        }
        if (!print_flush())
            break;
    }
    fputc('\n', stderr);
    buffer_free(&text);
    return status;
}

static int run_prompts(run *r)
{
    options      *o = &r->o.common;
    prompt_source source = {.text = r->o.prompt, .file = r->o.file, .lines = r->o.lines};
    bool          from_source = r->o.ids == NULL || strcmp(r->o.ids, "-") == 0;
    if (!from_source)
        source.text = r->o.ids;
    r->loop = from_source && source.text == NULL && source.file == NULL && isatty(STDIN_FILENO) == 1;
    r->rules = (prompt_rules){.as_ids = r->o.ids != NULL,
                              .empty_allowed = r->o.lines,
                              .budget_bytes = o->session.budget_bytes,
                              .max_input_tokens = o->session.max_input_tokens,
                              .vocab_size = r->info.vocab_size};
    if (o->session.max_output_tokens == 0)
        o->session.max_output_tokens = NEW_TOKENS;
    int status = check_budget_early(r);
    if (status == -1)
        status = find_text(r);
    if (r->loop && r->o.scores != NULL && status == -1) {
        options_fail(o, "--scores needs a prompt, --file or --input-ids");
        return EXIT_USAGE;
    }
    if (r->loop && status == -1) {
        if (o->session.max_input_tokens == 0)
            o->session.max_input_tokens = USUAL_INPUT_TOKENS;
        status = open_session(r);
        return status == -1 ? answer_loop(r) : status;
    }
    if (status == -1)
        status = prompts_read(&r->prompts, r->model, &r->rules, &source);
    nw_model_tokenizer_release(r->model);
    if (status == -1 && r->o.scores != NULL)
        interrupt_hold();
    if (status == -1 && r->o.scores != NULL)
        status = tensor_file_open(&r->scores, r->o.scores, r->prompts.count);
    if (status == -1)
        status = open_session(r);
    if (status == -1)
        status = answer_all(r);
    bool complete = status == -1 && print_flush(); /* stdout that failed has ended the answers early */
    return complete && r->o.scores != NULL ? tensor_file_finish(&r->scores) : status;
}

int command_run(int argc, char **argv)
{
    run r = {.o.common.name = "narrows run"};
    int status = options_parse(&run_argp, argc, argv, &r.o.common, &r.o);
    if (status != -1)
        return status;
    interrupt_setup();
    status = options_budget(&r.o.common);
    if (status == -1)
        status = open_model(&r);
    if (status == -1)
        status = run_prompts(&r);
    status = budget_end(r.session, &r.o.common, status, progress_summary);
    tensor_file_abandon(&r.scores);
    nw_session_close(r.session);
    nw_model_close(r.model);
    prompts_free(&r.prompts);
    buffer_free(&r.room);
    return print_finish(status);
}
