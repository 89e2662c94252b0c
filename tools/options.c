/* Options are parsed straight into nw_session_options, so that `run` and `plan` cannot mean different things by one
 * option. */
#include "options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_TOKENIZER = 256,
    KEY_CONFIG,
    KEY_MAX_INPUT,
    KEY_IO,
    KEY_WINDOW,
    KEY_PINS,
    KEY_PIN_FORM,
    KEY_QUEUE_DEPTH,
    KEY_SCRATCH,
    KEY_DISK_RATE,
    KEY_KV,
    KEY_PREFETCH,
    KEY_VERIFY,
    KEY_KERNELS,
    KEY_FORCE,
    KEY_JSON,
    KEY_COLOR,
    KEY_USAGE,
};

#define TOKENS_MAX ((uint64_t)1 << 20)
#define THREADS_MAX 256
#define QUEUE_DEPTH_MAX 1024

error_t options_fail(options *o, const char *fmt, ...)
{
    char    message[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    print_error("%s (see %s --help)", message, o->name);
    o->reported = true;
    return EINVAL;
}

bool options_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    /* strtoull takes signs and blanks, which are no part of a count. */
    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text))
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno != 0 || value < min || value > max)
        return false;
    *ret = value;
    return true;
}

/* ---- model
 * ------------------------------------------------------------------------------------------------------------ */

static const struct argp_option model_options[] = {
    {0, 0, 0, 0, "Model:", 1},
    {"model", 'm', "MODEL", 0,
     "A directory with config.json and weights, one .safetensors or .bin file, or owner/name in the local "
     "Hugging Face cache",
     1},
    {"config", KEY_CONFIG, "PATH", 0,
     "A config.json (default: beside the weights; for a single file without one, its shapes are inferred)", 1},
    {"tokenizer", KEY_TOKENIZER, "PATH", 0, "A spiece.model, or a directory with one (default: beside the model)", 1},
    {0},
};

static error_t parse_model(int key, char *arg, struct argp_state *state)
{
    options *o = (options *)state->input;
    switch (key) {
    case 'm': o->model = arg; return 0;
    case KEY_CONFIG: o->config = arg; return 0;
    case KEY_TOKENIZER: o->tokenizer = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp options_model_argp = {.options = model_options, .parser = parse_model};

/* ---- session
 * ---------------------------------------------------------------------------------------------------------- */

static const struct argp_option session_options[] = {
    {0, 0, 0, 0, "Budget and speed:", 4},
    {"budget", 'b', "SIZE", 0,
     "The most memory that the whole process may ever hold: 900M or 1.5G (of 1024), 2GB (of 1000), "
     "60% of what is available, or auto (default)",
     4},
    {"ram", 0, 0, OPTION_ALIAS, 0, 4},
    {"max-new-tokens", 'n', "N", 0, "The longest answer, in tokens (default 256)", 4},
    {"n-predict", 0, 0, OPTION_ALIAS, 0, 4},
    {"max-tokens", 0, 0, OPTION_ALIAS, 0, 4},
    {"max-input-tokens", KEY_MAX_INPUT, "N", 0, "The longest prompt, in tokens, its end token included", 4},
    {"threads", 't', "N", 0, "Threads that compute (default: as many as this process may use)", 4},
    {"force", KEY_FORCE, 0, 0, "Accept a budget above what the machine has available", 4},
    {"disk-rate", KEY_DISK_RATE, "SIZE", 0,
     "What the disk reads in a second: for predictions, and for whether what stays of a pack stays packed", 4},
    {"scratch", KEY_SCRATCH, "DIR", 0,
     "Where a long prompt's K and V go if the budget has no room for them (default: TMPDIR, /var/tmp or the current "
     "directory)",
     4},
    {0, 0, 0, 0, "For experiments, never changing the answer:", 5},
    {"io", KEY_IO, "WITH", 0, "How weights are read: uring, threads, or auto (default)", 5},
    {"window", KEY_WINDOW, "SIZE", 0, "Memory for weights on their way from the disk (default: chosen)", 5},
    {"queue-depth", KEY_QUEUE_DEPTH, "N", 0, "The most reads of weights at once (default: what the window holds)", 5},
    {"pins", KEY_PINS, "SIZE|off", 0, "The most that weights may stay resident (default: what fits)", 5},
    {"pin-form", KEY_PIN_FORM, "FORM", 0,
     "How weights stay resident: packed (as a pack has them), slim, plain, or auto (default)", 5},
    {"kv", KEY_KV, "disk|auto", 0, "Where K and V are kept (default auto: in memory, if they fit)", 5},
    {"prefetch", KEY_PREFETCH, "on|off", 0, "Read ahead of the computation (default on)", 5},
    {"verify", KEY_VERIFY, "on|off", 0, "Compare the checksums of a pack as it is read (default on)", 5},
    {"kernels", KEY_KERNELS, "NAME", OPTION_HIDDEN, 0, 5},
    {0},
};

static const struct argp_option budget_options[] = {
    {"budget", 'b', "SIZE", 0, "The most memory that the whole process may hold (default: what it takes)", 4},
    {"ram", 0, 0, OPTION_ALIAS, 0, 4},
    {"force", KEY_FORCE, 0, 0, "Accept a budget above what the machine has available", 4},
    {0},
};

static error_t parse_budget(int key, char *arg, struct argp_state *state)
{
    options *o = (options *)state->input;
    switch (key) {
    case 'b': o->budget = arg; return 0;
    case KEY_FORCE: o->session.force = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp options_budget_argp = {.options = budget_options, .parser = parse_budget};

static error_t parse_count(options *o, const char *option, const char *arg, uint64_t max, size_t *ret)
{
    uint64_t value;
    if (!options_number(arg, 1, max, &value))
        return options_fail(o, "%s: '%s' is not a number from 1 to %llu", option, arg, (unsigned long long)max);
    *ret = (size_t)value;
    return 0;
}

static error_t parse_io(options *o, const char *arg)
{
    if (strcmp(arg, "auto") == 0)
        o->session.io = NW_READ_AUTO;
    else if (strcmp(arg, "uring") == 0)
        o->session.io = NW_READ_URING;
    else if (strcmp(arg, "threads") == 0)
        o->session.io = NW_READ_THREADS;
    else
        return options_fail(o, "--io: '%s' is not uring, threads or auto", arg);
    return 0;
}

static error_t parse_pins(options *o, const char *arg)
{
    o->session.pins_off = strcmp(arg, "off") == 0;
    if (!o->session.pins_off && !nw_bytes_parse(arg, &o->session.pins_bytes))
        return options_fail(o, "--pins: '%s' is not a size (like 500M) or off", arg);
    return 0;
}

static error_t parse_pin_form(options *o, const char *arg)
{
    static const struct {
        const char *name;
        nw_pin_form form;
    } forms[] = {{"auto", NW_PINS_AUTO}, {"packed", NW_PINS_STORED}, {"slim", NW_PINS_SLIM}, {"plain", NW_PINS_PLAIN}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(arg, forms[i].name) == 0) {
            o->session.pin_form = forms[i].form;
            return 0;
        }
    }
    return options_fail(o, "--pin-form: '%s' is not packed, slim, plain or auto", arg);
}

static error_t parse_switch(options *o, const char *option, const char *arg, bool *ret_off)
{
    *ret_off = strcmp(arg, "off") == 0;
    if (!*ret_off && strcmp(arg, "on") != 0)
        return options_fail(o, "%s: '%s' is not on or off", option, arg);
    return 0;
}

static error_t parse_session(int key, char *arg, struct argp_state *state)
{
    options *o = (options *)state->input;
    size_t   count;
    switch (key) {
    case 'b': o->budget = arg; return 0;
    case 'n': return parse_count(o, "--max-new-tokens", arg, TOKENS_MAX, &o->session.max_output_tokens);
    case KEY_MAX_INPUT: return parse_count(o, "--max-input-tokens", arg, TOKENS_MAX, &o->session.max_input_tokens);
    case 't':
        if (parse_count(o, "--threads", arg, THREADS_MAX, &count) != 0)
            return EINVAL;
        o->session.threads = (unsigned)count;
        return 0;
    case KEY_FORCE: o->session.force = true; return 0;
    case KEY_IO: return parse_io(o, arg);
    case KEY_WINDOW:
        if (!nw_bytes_parse(arg, &o->session.window_bytes))
            return options_fail(o, "--window: '%s' is not a size (like 16M)", arg);
        return 0;
    case KEY_QUEUE_DEPTH:
        if (parse_count(o, "--queue-depth", arg, QUEUE_DEPTH_MAX, &count) != 0)
            return EINVAL;
        o->session.queue_depth = (unsigned)count;
        return 0;
    case KEY_PINS: return parse_pins(o, arg);
    case KEY_PIN_FORM: return parse_pin_form(o, arg);
    case KEY_DISK_RATE: {
        uint64_t rate;
        if (!nw_bytes_parse(arg, &rate) || rate == 0)
            return options_fail(o, "--disk-rate: '%s' is not a size (like 2G)", arg);
        o->session.disk_rate = (double)rate;
        return 0;
    }
    case KEY_SCRATCH: o->session.scratch = arg; return 0;
    case KEY_KV:
        o->session.kv_on_disk = strcmp(arg, "disk") == 0;
        if (!o->session.kv_on_disk && strcmp(arg, "auto") != 0)
            return options_fail(o, "--kv: '%s' is not disk or auto", arg);
        return 0;
    case KEY_PREFETCH: return parse_switch(o, "--prefetch", arg, &o->session.prefetch_off);
    case KEY_VERIFY: return parse_switch(o, "--verify", arg, &o->session.verify_off);
    case KEY_KERNELS: o->session.kernels = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp options_session_argp = {.options = session_options, .parser = parse_session};

/* ---- output
 * ----------------------------------------------------------------------------------------------------------- */

static const struct argp_option output_options[] = {
    {0, 0, 0, 0, "Output:", 6},
    {"json", KEY_JSON, 0, 0, "Print JSON", 6},
    {"quiet", 'q', 0, 0, "No progress, warnings or remarks on standard error", 6},
    {"verbose", 'v', 0, 0, "Say more on standard error; twice: much more", 6},
    {"color", KEY_COLOR, "WHEN", OPTION_ARG_OPTIONAL,
     "auto (default: on terminals, unless NO_COLOR is set), always, never", 6},
    {"help", 'h', 0, 0, "Print this help", 6},
    {"usage", KEY_USAGE, 0, 0, "Print a short summary of the options", 6},
    {0},
};

static error_t parse_output(int key, char *arg, struct argp_state *state)
{
    options *o = (options *)state->input;
    switch (key) {
    case KEY_JSON: o->json = true; return 0;
    case 'q': o->quiet = true; return 0;
    case 'v': o->verbose++; return 0;
    case KEY_COLOR:
        if (arg == NULL || strcmp(arg, "always") == 0)
            o->color = COLOR_ALWAYS;
        else if (strcmp(arg, "never") == 0)
            o->color = COLOR_NEVER;
        else if (strcmp(arg, "auto") != 0)
            return options_fail(o, "--color: '%s' is not auto, always or never", arg);
        return 0;
    case 'h':
    case KEY_USAGE: {
        char name[32];
        snprintf(name, sizeof name, "%s", o->name);
        print_whole();
        argp_help(state->root_argp, stdout,
                  key == 'h' ? ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC : ARGP_HELP_USAGE, name);
        o->helped = true;
        return ECANCELED;
    }
    case ARGP_KEY_ERROR: o->error_index = state->next; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp options_output_argp = {.options = output_options, .parser = parse_output};

/* ---- parsing
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned count;
    bool     exact;
} option_match;

/* Looks for `name` (len bytes) among the long options, as getopt does: exact, or a beginning. */
static void match_long(const struct argp *argp, const char *name, size_t len, option_match *match)
{
    for (const struct argp_option *p = argp->options; p != NULL && (p->name || p->key || p->doc); p++) {
        if (p->name == NULL || strncmp(p->name, name, len) != 0 || match->exact)
            continue;
        match->exact = p->name[len] == '\0';
        match->count = match->exact ? 1 : match->count + 1;
    }
    for (const struct argp_child *c = argp->children; c != NULL && c->argp != NULL; c++)
        match_long(c->argp, name, len, match);
}

static bool knows_short(const struct argp *argp, int key)
{
    for (const struct argp_option *p = argp->options; p != NULL && (p->name || p->key || p->doc); p++) {
        if (p->key == key)
            return true;
    }
    for (const struct argp_child *c = argp->children; c != NULL && c->argp != NULL; c++) {
        if (knows_short(c->argp, key))
            return true;
    }
    return false;
}

/* Says why getopt refused argv[index - 1] or, inside a cluster like -xq, argv[index]. */
static void explain_refused(const struct argp *argp, int argc, char **argv, int index, options *o)
{
    const char *word = index > 0 && index <= argc ? argv[index - 1] : "";
    if (strncmp(word, "--", 2) == 0 && word[2] != '\0') {
        size_t       len = strcspn(word + 2, "=");
        option_match match = {0};
        match_long(argp, word + 2, len, &match);
        int shown = (int)len + 2;
        if (match.count == 0)
            options_fail(o, "unknown option '%.*s'", shown, word);
        else if (match.count > 1)
            options_fail(o, "option '%.*s' could mean several", shown, word);
        else if (word[len + 2] == '=')
            options_fail(o, "option '%.*s' takes no value", shown, word);
        else
            options_fail(o, "option '%.*s' needs a value", shown, word);
        return;
    }
    const char *words[2] = {word, index < argc ? argv[index] : ""};
    for (size_t w = 0; w < 2; w++) {
        for (const char *c = words[w] + 1; words[w][0] == '-' && *c != '\0'; c++) {
            if (!knows_short(argp, (unsigned char)*c)) {
                options_fail(o, "unknown option '-%c'", *c);
                return;
            }
        }
    }
    options_fail(o, "option '%s' needs a value", word);
}

int options_parse(const struct argp *argp, int argc, char **argv, options *o, void *input)
{
    /* No message of argp's own, and no --help of its own, which would be silenced along with them. */
    error_t rc = argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, input);
    if (o->helped)
        return print_finish(EXIT_DONE);
    if (rc == ENOMEM) {
        print_error("out of memory");
        return EXIT_INTERNAL;
    }
    if (rc != 0) {
        if (!o->reported)
            explain_refused(argp, argc, argv, o->error_index, o);
        return EXIT_USAGE;
    }
    print_setup(o->color, o->quiet);
    o->session.log = print_log(o->quiet ? 0 : o->verbose);
    return -1;
}

static bool is_auto(const options *o)
{
    return o->budget == NULL || strcmp(o->budget, "auto") == 0;
}

int options_budget(options *o)
{
    nw_machine_memory_read(&o->memory);
    const char *text = is_auto(o) ? "auto" : o->budget;
    if (nw_budget_parse(text, &o->memory, &o->session.budget_bytes))
        return -1;
    options_fail(o, "--budget: '%s' is not a size: 900M, 1.5G, 2GB, 60%%, auto", text);
    return EXIT_USAGE;
}

int options_copying_budget(options *o)
{
    if (o->budget == NULL)
        return -1;
    int      status = options_budget(o);
    uint64_t budget = o->session.budget_bytes, available = o->memory.available + nw_process_peak();
    if (status != -1 || o->session.force || budget <= available)
        return status;
    char want[16], have[16];
    print_error("budget %s is above the %s that this machine has available (%s)", nw_bytes_format(budget, false, want),
                nw_bytes_format(available, false, have), o->memory.limited_by);
    return EXIT_BUDGET;
}

static void note_budget(const options *o)
{
    uint64_t budget = o->session.budget_bytes;
    char     chosen[16], left[16], kept[16];
    print_note("budget: %s (auto: %s leaves %s, of which %s is kept free)", nw_bytes_format(budget, false, chosen),
               o->memory.limited_by, nw_bytes_format(o->memory.available, false, left),
               nw_bytes_format(o->memory.available > budget ? o->memory.available - budget : 0, false, kept));
}

int options_open_model(const options *o, nw_model **ret_model)
{
    nw_error         err = {0};
    nw_model_options model = {
        .path = o->model,
        .config = o->config,
        .tokenizer = o->tokenizer,
        .budget_bytes = o->session.budget_bytes,
        .log = o->session.log,
    };
    if (nw_model_open(&model, ret_model, &err) != NW_OK)
        return print_failure(&err);
    if (is_auto(o) && o->session.budget_bytes > 0) /* 0: the command takes what it needs */
        note_budget(o);
    return -1;
}
