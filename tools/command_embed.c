/* embed: text in, what the encoder makes of it out. Nothing is decoded, so the session is one that only encodes: its
 * budget goes to the encoder's weights, which stay from text to text as far as they fit. Texts become ids before it
 * opens, as in run. */
#include "commands.h"

#include <string.h>

#include "advice.h"
#include "budget.h"
#include "embedding.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "prompts.h"
#include "workload.h"

enum { KEY_LINES = 512, KEY_INPUT_IDS, KEY_POOL, KEY_NORMALIZE, KEY_PAD_TO, KEY_MASK, KEY_ZERO_PAD, KEY_ENCODE_TOKENS };
enum { USUAL_INPUT_TOKENS = 512, PAD_TO_MAX = 1 << 20, ROOM_SHARE = 8 };

typedef struct {
    options     common;
    const char *text, *file, *ids, *output, *pool;
    bool        lines, normalize, mask_given, attend_pads, zero_pads;
    size_t      pad_to;
} embed_options;

typedef struct {
    embed_options   o;
    nw_model       *model;
    nw_session     *session;
    nw_model_info   info;
    prompts         texts;
    buffer          room;
    progress        progress;
    embedding_style style;
    tensor_file     file;
} embed;

/* ---- options
 * ---------------------------------------------------------------------------------------------------------- */

static const struct argp_option embed_argp_options[] = {
    {0, 0, 0, 0, "Text:", 2},
    {"file", 'f', "FILE", 0, "Read the text from FILE, all of it; - is standard input", 2},
    {"lines", KEY_LINES, 0, 0, "Each line is a text of its own, in order", 2},
    {"input-ids", KEY_INPUT_IDS, "IDS", 0,
     "Token ids instead of text, used as they are: \"13 959 1\"; - reads them as a text would be", 2},
    {"pad-to", KEY_PAD_TO, "N", 0, "Put pad tokens behind each text up to N tokens, and cut longer ones", 2},
    {"mask", KEY_MASK, "on|off", 0, "off: pads are attended to, like any other token (default on)", 2},
    {"zero-pad", KEY_ZERO_PAD, 0, 0, "The states of pads are zero", 2},
    {"encode-tokens", KEY_ENCODE_TOKENS, "N", 0,
     "With --lines: texts of up to N tokens go through the encoder together (default: chosen, up to 2048)", 5},
    {"output", 'o', "FILE", 0,
     "Write to FILE.safetensors or FILE.npy, states unless --pool is given; without it, vectors are printed as JSON",
     6},
    {"pool", KEY_POOL, "mean|none", 0,
     "mean: one vector a text, the mean over its tokens, end token included (default without --output); none: the "
     "states of all tokens",
     6},
    {"normalize", KEY_NORMALIZE, 0, 0, "Vectors have length 1", 6},
    {0},
};

static bool is_pooled(const embed_options *o)
{
    return o->pool != NULL ? strcmp(o->pool, "mean") == 0 : o->output == NULL;
}

/* What fits together, when all is parsed. */
static error_t check_options(embed_options *o)
{
    if (o->common.model == NULL)
        return options_fail(&o->common, "no model: -m MODEL is missing");
    if ((o->text != NULL) + (o->file != NULL) + (o->ids != NULL && strcmp(o->ids, "-") != 0) > 1)
        return options_fail(&o->common, "a text, --file and --input-ids exclude each other");
    if (o->pad_to == 0 && (o->mask_given || o->zero_pads))
        return options_fail(&o->common, "%s says how pads are treated: it needs --pad-to",
                            o->mask_given ? "--mask" : "--zero-pad");
    if (o->output == NULL && !is_pooled(o))
        return options_fail(&o->common, "--pool none: states need a file: --output FILE.safetensors or FILE.npy");
    if (o->output != NULL && o->common.json)
        return options_fail(&o->common, "--json and --output exclude each other");
    if (o->output != NULL && !tensor_file_is_named(o->output))
        return options_fail(&o->common, "--output: '%s' must end in .safetensors or .npy", o->output);
    if (o->normalize && !is_pooled(o))
        return options_fail(&o->common, "--normalize needs --pool mean");
    if (o->output != NULL && tensor_file_is_npy(o->output) && o->lines && !is_pooled(o) && o->pad_to == 0)
        return options_fail(&o->common, "an .npy file is one array: --lines needs --pad-to, --pool mean, or a "
                                        ".safetensors file");
    return 0;
}

static error_t parse_embed(int key, char *arg, struct argp_state *state)
{
    embed_options *o = (embed_options *)state->input;
    uint64_t       count;
    switch (key) {
    case ARGP_KEY_INIT:
        for (size_t i = 0; i < 3; i++)
            state->child_inputs[i] = &o->common;
        return 0;
    case ARGP_KEY_ARG:
        if (o->text != NULL)
            return options_fail(&o->common, "more than one text: quote a text of several words");
        o->text = arg;
        return 0;
    case 'f': o->file = arg; return 0;
    case 'o': o->output = arg; return 0;
    case KEY_LINES: o->lines = true; return 0;
    case KEY_INPUT_IDS: o->ids = arg; return 0;
    case KEY_POOL:
        o->pool = arg;
        if (strcmp(arg, "mean") != 0 && strcmp(arg, "none") != 0)
            return options_fail(&o->common, "--pool: '%s' is not mean or none", arg);
        return 0;
    case KEY_NORMALIZE: o->normalize = true; return 0;
    case KEY_PAD_TO:
        if (!options_number(arg, 1, PAD_TO_MAX, &count))
            return options_fail(&o->common, "--pad-to: '%s' is not a number from 1 to %d", arg, PAD_TO_MAX);
        o->pad_to = (size_t)count;
        return 0;
    case KEY_ENCODE_TOKENS:
        if (!options_number(arg, 1, PAD_TO_MAX, &count))
            return options_fail(&o->common, "--encode-tokens: '%s' is not a number from 1 to %d", arg, PAD_TO_MAX);
        o->common.session.max_encode_tokens = (size_t)count;
        return 0;
    case KEY_MASK:
        o->mask_given = true;
        o->attend_pads = strcmp(arg, "off") == 0;
        if (!o->attend_pads && strcmp(arg, "on") != 0)
            return options_fail(&o->common, "--mask: '%s' is not on or off", arg);
        return 0;
    case KEY_ZERO_PAD: o->zero_pads = true; return 0;
    case ARGP_KEY_END: return check_options(o);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0}, {&options_session_argp, 0, NULL, 0}, {&options_output_argp, 0, NULL, 0}, {0}};

static const struct argp embed_argp = {
    .options = embed_argp_options,
    .parser = parse_embed,
    .args_doc = "[TEXT]",
    .doc = "Runs the encoder of a model on texts, holding at most BUDGET of memory, and writes its states to a file, "
           "or one vector a text to standard output. An empty text is one end token. Without TEXT, --file and "
           "--input-ids the text is read from standard input."
           "\vA .safetensors file has states [tokens, d_model], input_ids and attention_mask; with --lines and "
           "--pad-to these are [texts, N, ...], with --lines alone states.0, states.1 and so on. With --pool mean it "
           "has embeddings [texts, d_model]. An .npy file is the first of these alone. The dense layer that "
           "sentence-t5 and gtr have behind the mean is not applied.\n\n"
           "Examples:\n"
           "  narrows embed -m flan-t5-xl -b 1G --pool mean --normalize --lines -f a.txt\n"
           "and as pipelines do with their text encoders, Flux, Stable Diffusion 3, Wan:\n"
           "  narrows embed -m t5-v1_1-xxl -b 4G --pad-to 512 --mask off -o x.npy TEXT\n"
           "  narrows embed -m t5-v1_1-xxl -b 4G --pad-to 256 --mask off -o x.npy TEXT\n"
           "  narrows embed -m umt5-xxl -b 4G --pad-to 512 --zero-pad -o x.npy TEXT",
    .children = children,
};

/* ---- session
 * ---------------------------------------------------------------------------------------------------------- */

/* A budget under which nothing runs at all is refused before the tokenizer is loaded, when nobody knows yet how long
 * the texts are: what is named does for any ordinary one. Returns -1 to go on. */
static int check_budget_early(const embed *e)
{
    nw_session_options o = e->o.common.session;
    nw_plan            plan;
    nw_error           err = {0};
    size_t             usual = o.max_input_tokens > 0 ? o.max_input_tokens : USUAL_INPUT_TOKENS;
    o.max_input_tokens = 1;
    if (budget_smallest(e->model, &o) <= o.budget_bytes)
        return -1;
    o.max_input_tokens = e->o.pad_to > 0 ? e->o.pad_to : usual;
    return nw_plan_make(e->model, &o, &plan, &err) == NW_OK ? -1 : print_failure(&err);
}

static int read_texts(embed *e)
{
    const embed_options *o = &e->o;
    prompt_source        source = {.text = o->text, .file = o->file, .lines = o->lines};
    size_t               most = o->common.session.max_input_tokens;
    if (o->pad_to > 0 && (most == 0 || most > o->pad_to))
        most = o->pad_to;
    prompt_rules rules = {.as_ids = o->ids != NULL,
                          .empty_allowed = o->ids == NULL,
                          .budget_bytes = o->common.session.budget_bytes,
                          .max_input_tokens = most,
                          .vocab_size = e->info.vocab_size};
    if (o->ids != NULL && strcmp(o->ids, "-") != 0)
        source.text = o->ids;
    int status = prompts_read(&e->texts, e->model, &rules, &source);
    nw_model_tokenizer_release(e->model);
    return status;
}

static int open_session(embed *e)
{
    const embed_options *o = &e->o;
    nw_session_options  *session = &e->o.common.session;
    bool                 chosen = session->max_encode_tokens == 0;
    nw_error             err = {0};
    e->style = (embedding_style){.d_model = e->info.d_model,
                                 .pad_id = e->info.pad_id,
                                 .eos_id = e->info.eos_id,
                                 .pad_to = o->pad_to,
                                 .attend_pads = o->attend_pads,
                                 .zero_pads = o->zero_pads,
                                 .pool = is_pooled(o),
                                 .normalize = o->normalize,
                                 .lines = o->lines,
                                 .stats = o->common.verbose > 0};
    session->max_input_tokens = embedding_tokens_max(&e->style, e->texts.longest);
    if (e->style.pool && !embedding_room(&e->style, &e->room, session->budget_bytes / ROOM_SHARE)) {
        print_error("this budget has no room for a vector of %u numbers", e->info.d_model);
        return EXIT_BUDGET;
    }
    if (e->texts.count > 1 && chosen)
        encoding_fill(e->model, embedding_rows(&e->style, &e->texts), session);
    nw_code rc = nw_session_open(e->model, session, &e->session, &err);
    if (rc == NW_E_BUDGET && chosen && session->max_encode_tokens > 0) { /* by a little */
        session->max_encode_tokens = 0;
        rc = nw_session_open(e->model, session, &e->session, &err);
    }
    if (rc != NW_OK)
        return print_failure(&err);
    e->style.encode_tokens = session->max_encode_tokens;
    e->style.session = e->session;
    progress_start(&e->progress, o->common.quiet, e->session);
    e->progress.texts = true;
    nw_session_on_progress(e->session, progress_update, &e->progress);
    return -1;
}

/* ---- together
 * --------------------------------------------------------------------------------------------------------- */

/* From the first byte of the file until it is whole or gone, a signal stops the session and does not end the program:
 * nothing half-written stays. */
static int write_texts(embed *e)
{
    int status = -1;
    interrupt_watch(e->session);
    if (e->o.output != NULL) {
        status = tensor_file_open(&e->file, e->o.output, embedding_tensor_count(&e->style, e->texts.count));
        e->style.file = &e->file;
    }
    if (status == -1)
        status = embedding_write_all(&e->style, &e->texts);
    if (status == -1 && interrupted())
        status = EXIT_INTERRUPTED;
    if (e->o.output != NULL && status == -1)
        status = tensor_file_finish(&e->file);
    tensor_file_abandon(&e->file);
    interrupt_watch(NULL);
    return status;
}

static int run(embed *e)
{
    int status = options_open_model(&e->o.common, &e->model);
    if (status != -1)
        return status;
    nw_model_describe(e->model, &e->info);
    note_lossy(e->model);
    e->o.common.session.encode_only = true;
    status = check_budget_early(e);
    if (status == -1)
        status = read_texts(e);
    if (status == -1)
        status = open_session(e);
    return status == -1 ? write_texts(e) : status;
}

int command_embed(int argc, char **argv)
{
    embed e = {.o.common.name = "narrows embed"};
    int   status = options_parse(&embed_argp, argc, argv, &e.o.common, &e.o);
    if (status != -1)
        return status;
    interrupt_setup();
    status = options_budget(&e.o.common);
    if (status == -1)
        status = run(&e);
    status = budget_end(e.session, &e.o.common, status, progress_summary_texts);
    nw_session_close(e.session);
    nw_model_close(e.model);
    prompts_free(&e.texts);
    buffer_free(&e.room);
    return print_finish(status);
}
