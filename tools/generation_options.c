/* Each option sets a field of `given` and its bit, as a file of the model would: ranges and contradictions are judged
 * in one place, by nw_generation_check. What only the tokenizer can tell (pieces, words) waits as text until it is
 * there. */
#include "generation_options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "print.h"
#include "utf8_text.h"

enum {
    KEY_NUM_BEAMS = 1024,
    KEY_NUM_RETURN_SEQUENCES,
    KEY_LENGTH_PENALTY,
    KEY_EARLY_STOPPING,
    KEY_REPETITION_PENALTY,
    KEY_NO_REPEAT_NGRAM_SIZE,
    KEY_MIN_NEW_TOKENS,
    KEY_DO_SAMPLE,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_MIN_P,
    KEY_SEED,
    KEY_STOP,
    KEY_FORCED_BOS,
    KEY_SUPPRESS_TOKENS,
    KEY_BAD_WORDS,
    KEY_BAD_WORDS_IDS,
    KEY_TASK,
    KEY_PREFIX,
    KEY_LANES,
    KEY_LOOKUP,
    KEY_DRAFT,
};

enum {
    NEW_TOKENS = 256,
    GUESSES_MAX = 15,
    ANSWER_USUAL = 32,
    LANES_MAX = 1024,
    WORDS_BYTES = NW_BAD_WORDS_MAX * sizeof(char *),
    PATH_BYTES = 4096
};

#define GROUP 3 /* behind what is run, before the budget */

static const struct argp_option generation_argp_options[] = {
    {0, 0, 0, 0,
     "Generation, as generate() names it (default: what the model's files say, else greedy search):", GROUP},
    {"num-beams", KEY_NUM_BEAMS, "N", 0, "Beam search with N beams", GROUP},
    {"num-return-sequences", KEY_NUM_RETURN_SEQUENCES, "N", 0, "Answers to each prompt: the best N beams, or N samples",
     GROUP},
    {"length-penalty", KEY_LENGTH_PENALTY, "X", 0, "Beams are compared by log-probability / length^X", GROUP},
    {"early-stopping", KEY_EARLY_STOPPING, "true|false|never", 0, "When a beam search ends", GROUP},
    {"do-sample", KEY_DO_SAMPLE, "true|false", OPTION_ARG_OPTIONAL, "Draw each token instead of taking the best",
     GROUP},
    {"temperature", KEY_TEMPERATURE, "X", 0, "With --do-sample: scores are divided by X", GROUP},
    {"top-k", KEY_TOP_K, "N", 0, "With --do-sample: from the N most probable tokens; 0: all", GROUP},
    {"top-p", KEY_TOP_P, "X", 0, "With --do-sample: from the fewest whose probabilities reach X", GROUP},
    {"min-p", KEY_MIN_P, "X", 0, "With --do-sample: from those with X times the best one's probability", GROUP},
    {"seed", KEY_SEED, "N", 0,
     "With --do-sample: of the draws (default 0); the same on every machine, for any lanes and threads", GROUP},
    {"repetition-penalty", KEY_REPETITION_PENALTY, "X", 0, "Makes what was written less probable; 1 is none", GROUP},
    {"no-repeat-ngram-size", KEY_NO_REPEAT_NGRAM_SIZE, "N", 0, "No N tokens in a row come twice", GROUP},
    {"min-new-tokens", KEY_MIN_NEW_TOKENS, "N", 0, "The shortest answer, in tokens", GROUP},
    {"stop", KEY_STOP, "TEXT", 0, "End before TEXT, which is left out; may be given again", GROUP},
    {"stop-strings", 0, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, GROUP},
    {"forced-bos", KEY_FORCED_BOS, "ID|PIECE", 0, "The first token, such as a language's", GROUP},
    {"forced-bos-token-id", 0, 0, OPTION_ALIAS | OPTION_HIDDEN, 0, GROUP},
    {"suppress-tokens", KEY_SUPPRESS_TOKENS, "IDS", 0, "Tokens that are never written: \"32099 32098\"", GROUP},
    {"bad-words", KEY_BAD_WORDS, "TEXT", 0, "Words that are never written; may be given again", GROUP},
    {"bad-words-ids", KEY_BAD_WORDS_IDS, "IDS", 0, "The same, as the ids of one sequence of tokens", GROUP},
    {"task", KEY_TASK, "NAME", 0, "What config.json says of a task: its settings and its prefix", GROUP},
    {"prefix", KEY_PREFIX, "TEXT", 0, "Put TEXT before every prompt", GROUP},
    {"lanes", KEY_LANES, "N|auto", 0,
     "Sequences that advance together, each pass over the weights serving all (default auto: up to 16, as the budget "
     "and the number of prompts allow)",
     3},
    {"lookup", KEY_LOOKUP, "on|off", 0,
     "Guess tokens from the prompt and the answer, several checked by one pass; never changes the answer (default on)",
     3},
    {"draft", KEY_DRAFT, "MODEL", 0,
     "Guess tokens by MODEL instead, a small one of the same vocabulary, in the same budget; never changes the answer",
     3},
    {0},
};

/* ---- parsing ---- */

static void set_bit(generation_options *o, nw_generation_field field)
{
    o->given.given |= NW_GENERATION_BIT(field);
}

static error_t parse_count(generation_options *o, const char *option, const char *arg, nw_generation_field field,
                           uint32_t *ret)
{
    uint64_t value;
    if (!options_number(arg, 0, UINT32_MAX, &value))
        return options_fail(o->common, "%s: '%s' is not a number", option, arg);
    *ret = (uint32_t)value;
    set_bit(o, field);
    return 0;
}

/* Decimal only: no nan, inf, or hexadecimal. */
static error_t parse_real(generation_options *o, const char *option, const char *arg, nw_generation_field field,
                          double *ret)
{
    char *end = NULL;
    errno = 0;
    double value = strtod(arg, &end);
    if (arg[0] == '\0' || *end != '\0' || strspn(arg, "0123456789+-.eE") != strlen(arg) || errno != 0 ||
        !isfinite(value))
        return options_fail(o->common, "%s: '%s' is not a number", option, arg);
    *ret = value;
    set_bit(o, field);
    return 0;
}

static error_t parse_early(generation_options *o, const char *arg)
{
    static const struct {
        const char       *name;
        nw_early_stopping value;
    } names[] = {{"false", NW_EARLY_FALSE}, {"true", NW_EARLY_TRUE}, {"never", NW_EARLY_NEVER}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(arg, names[i].name) == 0) {
            o->given.early_stopping = names[i].value;
            set_bit(o, NW_GENERATION_EARLY_STOPPING);
            return 0;
        }
    }
    return options_fail(o->common, "--early-stopping: '%s' is not true, false or never", arg);
}

static error_t parse_do_sample(generation_options *o, const char *arg)
{
    o->given.do_sample = arg == NULL || strcmp(arg, "true") == 0;
    if (!o->given.do_sample && strcmp(arg, "false") != 0)
        return options_fail(o->common, "--do-sample: '%s' is not true or false", arg);
    set_bit(o, NW_GENERATION_DO_SAMPLE);
    return 0;
}

static error_t parse_stop(generation_options *o, const char *arg)
{
    nw_stop_strings *stops = &o->given.stop_strings;
    size_t           len = strlen(arg);
    if (len == 0)
        return options_fail(o->common, "--stop: an empty string would stop everything");
    if (len > NW_STOP_BYTES_MAX)
        return options_fail(o->common, "--stop: a string has %zu bytes, not up to %d", len, NW_STOP_BYTES_MAX);
    if (stops->count == NW_STOP_STRINGS_MAX)
        return options_fail(o->common, "--stop: more than %d strings", NW_STOP_STRINGS_MAX);
    if (utf8_invalid_at(arg, len) != SIZE_MAX)
        return options_fail(o->common, "--stop: not UTF-8");
    memcpy(stops->text[stops->count], arg, len);
    stops->lens[stops->count++] = (uint16_t)len;
    set_bit(o, NW_GENERATION_STOP_STRINGS);
    return 0;
}

static error_t parse_forced_bos(generation_options *o, const char *arg)
{
    uint64_t id;
    o->forced_bos = arg;
    if (arg[0] == '\0')
        return options_fail(o->common, "--forced-bos: neither an id nor a piece");
    if (!options_number(arg, 0, UINT32_MAX - 1, &id))
        return 0; /* a piece */
    o->forced_bos = NULL;
    o->given.forced_bos_token_id = (uint32_t)id;
    set_bit(o, NW_GENERATION_FORCED_BOS_TOKEN_ID);
    return 0;
}

/* Ids separated by blanks or commas, behind those that are there. */
static error_t parse_ids(generation_options *o, const char *option, const char *arg, uint32_t *ids, uint32_t *count)
{
    uint32_t before = *count;
    for (const char *at = arg + strspn(arg, " ,"); *at != '\0'; at += strspn(at, " ,")) {
        char     word[16];
        uint64_t id;
        size_t   len = strcspn(at, " ,");
        if (len < sizeof word) {
            memcpy(word, at, len);
            word[len] = '\0';
        }
        if (len >= sizeof word || !options_number(word, 0, UINT32_MAX - 1, &id))
            return options_fail(o->common, "%s: '%.*s' is not a token id", option, (int)(len > 40 ? 40 : len), at);
        if (*count == NW_ID_LIST_MAX)
            return options_fail(o->common, "%s: more than %d ids", option, NW_ID_LIST_MAX);
        ids[(*count)++] = (uint32_t)id;
        at += len;
    }
    return *count > before ? 0 : options_fail(o->common, "%s: no token ids", option);
}

static error_t parse_bad_ids(generation_options *o, const char *arg)
{
    nw_bad_words *words = &o->given.bad_words_ids;
    uint32_t      before = words->id_count;
    if (words->count == NW_BAD_WORDS_MAX)
        return options_fail(o->common, "--bad-words-ids: more than %d sequences", NW_BAD_WORDS_MAX);
    if (parse_ids(o, "--bad-words-ids", arg, words->ids, &words->id_count) != 0)
        return EINVAL;
    words->lens[words->count++] = (uint16_t)(words->id_count - before);
    set_bit(o, NW_GENERATION_BAD_WORDS_IDS);
    return 0;
}

static error_t parse_bad_word(generation_options *o, const char *arg)
{
    if (arg[0] == '\0' || utf8_invalid_at(arg, strlen(arg)) != SIZE_MAX)
        return options_fail(o->common, "--bad-words: %s", arg[0] == '\0' ? "an empty text" : "not UTF-8");
    if (!buffer_append(&o->bad_words, &arg, sizeof arg, WORDS_BYTES))
        return options_fail(o->common, "--bad-words: more than %d texts", NW_BAD_WORDS_MAX);
    return 0;
}

static error_t parse_prefix(generation_options *o, const char *arg)
{
    size_t len = strlen(arg);
    if (len > NW_PREFIX_MAX || utf8_invalid_at(arg, len) != SIZE_MAX)
        return options_fail(o->common, "--prefix: %s", len > NW_PREFIX_MAX ? "more than 256 bytes" : "not UTF-8");
    o->prefix = arg;
    memcpy(o->given.prefix, arg, len);
    o->given.prefix_len = (uint32_t)len;
    set_bit(o, NW_GENERATION_PREFIX);
    return 0;
}

static error_t parse_lanes(generation_options *o, const char *arg)
{
    uint64_t value = 0;
    if (strcmp(arg, "auto") != 0 && !options_number(arg, 1, LANES_MAX, &value))
        return options_fail(o->common, "--lanes: '%s' is not a number from 1 to %d, or auto", arg, LANES_MAX);
    o->lanes = (size_t)value;
    return 0;
}

static error_t parse_lookup(generation_options *o, const char *arg)
{
    o->lookup_off = strcmp(arg, "off") == 0;
    if (!o->lookup_off && strcmp(arg, "on") != 0)
        return options_fail(o->common, "--lookup: '%s' is not on or off", arg);
    return 0;
}

static error_t parse_generation(int key, char *arg, struct argp_state *state)
{
    generation_options     *o = (generation_options *)state->input;
    nw_generation_settings *g = &o->given;
    switch (key) {
    case KEY_NUM_BEAMS: return parse_count(o, "--num-beams", arg, NW_GENERATION_NUM_BEAMS, &g->num_beams);
    case KEY_NUM_RETURN_SEQUENCES:
        return parse_count(o, "--num-return-sequences", arg, NW_GENERATION_NUM_RETURN_SEQUENCES,
                           &g->num_return_sequences);
    case KEY_LENGTH_PENALTY:
        return parse_real(o, "--length-penalty", arg, NW_GENERATION_LENGTH_PENALTY, &g->length_penalty);
    case KEY_EARLY_STOPPING: return parse_early(o, arg);
    case KEY_REPETITION_PENALTY:
        return parse_real(o, "--repetition-penalty", arg, NW_GENERATION_REPETITION_PENALTY, &g->repetition_penalty);
    case KEY_NO_REPEAT_NGRAM_SIZE:
        return parse_count(o, "--no-repeat-ngram-size", arg, NW_GENERATION_NO_REPEAT_NGRAM_SIZE,
                           &g->no_repeat_ngram_size);
    case KEY_MIN_NEW_TOKENS:
        return parse_count(o, "--min-new-tokens", arg, NW_GENERATION_MIN_NEW_TOKENS, &g->min_new_tokens);
    case KEY_DO_SAMPLE: return parse_do_sample(o, arg);
    case KEY_TEMPERATURE: return parse_real(o, "--temperature", arg, NW_GENERATION_TEMPERATURE, &g->temperature);
    case KEY_TOP_K: return parse_count(o, "--top-k", arg, NW_GENERATION_TOP_K, &g->top_k);
    case KEY_TOP_P: return parse_real(o, "--top-p", arg, NW_GENERATION_TOP_P, &g->top_p);
    case KEY_MIN_P: return parse_real(o, "--min-p", arg, NW_GENERATION_MIN_P, &g->min_p);
    case KEY_SEED:
        o->seed_given = true;
        return options_number(arg, 0, UINT64_MAX, &o->seed)
                   ? 0
                   : options_fail(o->common, "--seed: '%s' is not a number below 2^64", arg);
    case KEY_STOP: return parse_stop(o, arg);
    case KEY_FORCED_BOS: return parse_forced_bos(o, arg);
    case KEY_SUPPRESS_TOKENS:
        set_bit(o, NW_GENERATION_SUPPRESS_TOKENS);
        return parse_ids(o, "--suppress-tokens", arg, g->suppress_tokens.ids, &g->suppress_tokens.count);
    case KEY_BAD_WORDS: return parse_bad_word(o, arg);
    case KEY_BAD_WORDS_IDS: return parse_bad_ids(o, arg);
    case KEY_TASK: o->task = arg; return 0;
    case KEY_PREFIX: return parse_prefix(o, arg);
    case KEY_LANES: return parse_lanes(o, arg);
    case KEY_LOOKUP: return parse_lookup(o, arg);
    case KEY_DRAFT: o->draft = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp generation_argp = {.options = generation_argp_options, .parser = parse_generation};

bool generation_has_words(const generation_options *o)
{
    return o->forced_bos != NULL || o->bad_words.used > 0;
}

bool generation_given(const generation_options *o)
{
    const uint32_t others = NW_GENERATION_BIT(NW_GENERATION_PREFIX);
    return (o->given.given & ~others) != 0 || generation_has_words(o) || o->seed_given;
}

void generation_free(generation_options *o)
{
    buffer_free(&o->bad_words);
}

/* ---- printing ---- */

/* Writes those of `fields` that are in force and not off. */
typedef struct {
    bool (*put)(void *user, const char *key, const char *value);
    void    *user;
    uint32_t fields; /* NW_GENERATION_BIT */
} writer;

static bool shows(const writer *w, nw_generation_field field)
{
    return (w->fields & NW_GENERATION_BIT(field)) != 0;
}

static bool put_count(const writer *w, nw_generation_field field, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return !shows(w, field) || w->put(w->user, key, text);
}

static bool put_real(const writer *w, nw_generation_field field, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    return !shows(w, field) || w->put(w->user, key, text);
}

static bool put_ids(const writer *w, nw_generation_field field, const char *key, const uint32_t *ids, size_t count)
{
    char   text[NW_ID_LIST_MAX * 12 + 8];
    size_t used = 0;
    if (count == 0 || !shows(w, field))
        return true;
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", i == 0 ? "[" : ", ", ids[i]);
    snprintf(text + used, sizeof text - used, "]");
    return w->put(w->user, key, text);
}

static bool put_bad_words(const writer *w, const nw_bad_words *words)
{
    char            text[NW_ID_LIST_MAX * 12 + NW_BAD_WORDS_MAX * 4 + 8];
    size_t          used = 0;
    const uint32_t *ids = words->ids;
    if (words->count == 0 || !shows(w, NW_GENERATION_BAD_WORDS_IDS))
        return true;
    for (uint32_t i = 0; i < words->count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, i == 0 ? "[" : ", ");
        for (uint16_t k = 0; k < words->lens[i]; k++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", k == 0 ? "[" : ", ", *ids++);
        used += (size_t)snprintf(text + used, sizeof text - used, "]");
    }
    snprintf(text + used, sizeof text - used, "]");
    return w->put(w->user, "bad_words_ids", text);
}

static bool put_searching(const writer *w, const nw_generation_settings *s)
{
    static const char *const early[] = {"false", "true", "\"never\""};
    bool                     ok = true;
    if (s->do_sample && shows(w, NW_GENERATION_DO_SAMPLE))
        ok = w->put(w->user, "do_sample", "true");
    if (s->num_beams > 1)
        ok = ok && put_count(w, NW_GENERATION_NUM_BEAMS, "num_beams", s->num_beams);
    if (s->num_return_sequences > 1)
        ok = ok && put_count(w, NW_GENERATION_NUM_RETURN_SEQUENCES, "num_return_sequences", s->num_return_sequences);
    if (s->do_sample)
        return ok && put_real(w, NW_GENERATION_TEMPERATURE, "temperature", s->temperature) &&
               put_count(w, NW_GENERATION_TOP_K, "top_k", s->top_k) &&
               put_real(w, NW_GENERATION_TOP_P, "top_p", s->top_p) &&
               put_real(w, NW_GENERATION_MIN_P, "min_p", s->min_p);
    if (s->num_beams > 1)
        ok = ok && put_real(w, NW_GENERATION_LENGTH_PENALTY, "length_penalty", s->length_penalty);
    if (s->num_beams > 1 && shows(w, NW_GENERATION_EARLY_STOPPING))
        ok = ok && w->put(w->user, "early_stopping", early[s->early_stopping]);
    return ok;
}

static bool put_processing(const writer *w, const nw_generation_settings *s)
{
    bool     ok = true;
    uint32_t shortest = nw_generation_min_new(s);
    if (s->repetition_penalty < 1 || s->repetition_penalty > 1)
        ok = put_real(w, NW_GENERATION_REPETITION_PENALTY, "repetition_penalty", s->repetition_penalty);
    if (s->no_repeat_ngram_size > 0)
        ok = ok && put_count(w, NW_GENERATION_NO_REPEAT_NGRAM_SIZE, "no_repeat_ngram_size", s->no_repeat_ngram_size);
    ok = ok && put_bad_words(w, &s->bad_words_ids) &&
         put_ids(w, NW_GENERATION_SUPPRESS_TOKENS, "suppress_tokens", s->suppress_tokens.ids,
                 s->suppress_tokens.count) &&
         put_ids(w, NW_GENERATION_BEGIN_SUPPRESS_TOKENS, "begin_suppress_tokens", s->begin_suppress_tokens.ids,
                 s->begin_suppress_tokens.count);
    if (s->forced_bos_token_id != NW_ID_NONE)
        ok = ok && put_count(w, NW_GENERATION_FORCED_BOS_TOKEN_ID, "forced_bos_token_id", s->forced_bos_token_id);
    ok = ok && put_ids(w, NW_GENERATION_FORCED_EOS_TOKEN_ID, "forced_eos_token_id", s->forced_eos_token_id.ids,
                       s->forced_eos_token_id.count);
    if (shortest > 0 && (shows(w, NW_GENERATION_MIN_LENGTH) || shows(w, NW_GENERATION_MIN_NEW_TOKENS))) {
        const writer both = {.put = w->put, .user = w->user, .fields = UINT32_MAX};
        ok = ok && put_count(&both, NW_GENERATION_MIN_NEW_TOKENS, "min_new_tokens", shortest);
    }
    return ok;
}

typedef struct {
    bool any;
} json_object;

static bool put_json(void *user, const char *key, const char *value)
{
    json_object *o = user;
    bool         ok = print_text("%s\"%s\": ", o->any ? ", " : "", key) && print_bytes(value, strlen(value));
    o->any = true;
    return ok;
}

static bool print_stops(json_object *o, const nw_stop_strings *stops)
{
    bool ok = put_json(o, "stop_strings", "[");
    for (uint32_t i = 0; i < stops->count && ok; i++)
        ok = print_text(i == 0 ? "\"" : ", \"") && print_json_text(stops->text[i], stops->lens[i]) && print_text("\"");
    return ok && print_text("]");
}

bool generation_print_json(const nw_generation_settings *s, uint64_t seed, bool lookup_off, const char *draft)
{
    json_object  object = {0};
    const writer w = {.put = put_json, .user = &object, .fields = UINT32_MAX};
    bool ok = print_text("{") && put_count(&w, NW_GENERATION_MAX_NEW_TOKENS, "max_new_tokens", s->max_new_tokens) &&
              put_searching(&w, s) && put_processing(&w, s);
    if (s->do_sample)
        ok = ok && put_count(&w, NW_GENERATION_DO_SAMPLE, "seed", seed);
    if (s->stop_strings.count > 0)
        ok = ok && print_stops(&object, &s->stop_strings);
    if (s->prefix_len > 0)
        ok = ok && put_json(&object, "prefix", "\"") && print_json_text(s->prefix, s->prefix_len) && print_text("\"");
    if (lookup_off)
        ok = ok && put_json(&object, "lookup", "false");
    if (draft != NULL)
        ok = ok && put_json(&object, "draft", "\"") && print_json_text(draft, strlen(draft)) && print_text("\"");
    return ok && print_text("}");
}

/* ---- what is in force ---- */

/* A list for a note. */
typedef struct {
    char   text[400];
    size_t used;
} note;

static bool put_note(void *user, const char *key, const char *value)
{
    note *n = user;
    int len = snprintf(n->text + n->used, sizeof n->text - n->used, "%s%s %.60s%s", n->used > 0 ? ", " : "", key, value,
                       strlen(value) > 60 ? "..." : "");
    n->used += (size_t)len;
    if (n->used >= sizeof n->text)
        n->used = sizeof n->text - 1;
    return true;
}

/* The file that general settings come from: the other one is read only where this is not there. */
static const char *settings_file(const nw_model *model)
{
    char          path[PATH_BYTES];
    nw_model_info info;
    nw_model_describe(model, &info);
    const char *slash = info.config_path != NULL ? strrchr(info.config_path, '/') : NULL;
    int         dir = slash != NULL ? (int)(slash - info.config_path) + 1 : 0;
    if (info.config_path == NULL)
        return "config.json";
    int  len = snprintf(path, sizeof path, "%.*sgeneration_config.json", dir, info.config_path);
    bool there = len > 0 && len < PATH_BYTES && access(path, F_OK) == 0;
    return there ? "generation_config.json" : "config.json";
}

/* What of the settings in force comes from the files: someone who expects plain greedy search, and 256 tokens, is told.
 */
static void note_files(const generation_options *o, const nw_model *model, const nw_generation_settings *s,
                       uint32_t by_files)
{
    note         n = {0};
    const writer w = {.put = put_note, .user = &n, .fields = by_files};
    if (s->not_followed != NULL)
        print_note("%s: '%s' is not followed", settings_file(model), s->not_followed);
    put_searching(&w, s);
    put_processing(&w, s);
    if (s->stop_strings.count > 0)
        put_count(&w, NW_GENERATION_STOP_STRINGS, "stop_strings", s->stop_strings.count);
    if (s->prefix_len > 0 && shows(&w, NW_GENERATION_PREFIX)) {
        char text[NW_PREFIX_MAX + 3];
        snprintf(text, sizeof text, "\"%.*s\"", (int)s->prefix_len, s->prefix);
        put_note(&n, "prefix", text);
    }
    if (shows(&w, NW_GENERATION_MAX_LENGTH) || shows(&w, NW_GENERATION_MAX_NEW_TOKENS)) {
        char most[16];
        snprintf(most, sizeof most, "%u", s->max_new_tokens);
        put_note(&n, "max_new_tokens", most);
    }
    if (n.used > 0)
        print_note("by %s%s%s: %s", settings_file(model), o->task != NULL ? ", task " : "",
                   o->task != NULL ? o->task : "", n.text);
}

/* A search of the files and sampling of the command line, or the other way round. */
static int check_mixed(const nw_generation_settings *s, uint32_t by_caller)
{
    bool sample_given = (by_caller & NW_GENERATION_BIT(NW_GENERATION_DO_SAMPLE)) != 0;
    bool beams_given = (by_caller & NW_GENERATION_BIT(NW_GENERATION_NUM_BEAMS)) != 0;
    if (!s->do_sample || s->num_beams < 2 || sample_given == beams_given)
        return -1;
    if (sample_given)
        print_error("--do-sample: the model's files say num_beams %u, and beams are searched, not sampled: add "
                    "--num-beams 1",
                    s->num_beams);
    else
        print_error("--num-beams %u: the model's files say do_sample, and beams are searched, not sampled: add "
                    "--do-sample=false",
                    s->num_beams);
    return EXIT_USAGE;
}

static int check(const nw_model *model, const nw_generation_settings *s, uint32_t by_caller)
{
    nw_model_info info;
    nw_error      err = {0};
    nw_model_describe(model, &info);
    int status = check_mixed(s, by_caller);
    if (status != -1)
        return status;
    return nw_generation_check(s, by_caller, info.vocab_size, &err) == NW_OK ? -1 : print_failure(&err);
}

int generation_settle(const generation_options *o, nw_model *model, nw_generation_settings *ret)
{
    nw_error               err = {0};
    nw_generation_settings files, given = o->given;
    size_t                 most = o->common->session.max_output_tokens;
    if (nw_model_generation(model, o->task, &files, &err) != NW_OK)
        return print_failure(&err);
    if (most > 0) {
        given.max_new_tokens = (uint32_t)most;
        given.given |= NW_GENERATION_BIT(NW_GENERATION_MAX_NEW_TOKENS);
    }
    *ret = files;
    nw_generation_merge(ret, &given);
    ret->max_new_tokens = nw_generation_max_new(ret, NEW_TOKENS);
    int status = check(model, ret, given.given);
    if (status == -1 && o->seed_given && !ret->do_sample) {
        print_error("--seed is for sampling: it needs --do-sample");
        status = EXIT_USAGE;
    }
    if (status == -1 && o->lanes > 0 && o->lanes < generation_width(ret)) {
        print_error("--lanes %zu: the %zu %s of one prompt need as many", o->lanes, generation_width(ret),
                    ret->do_sample ? "samples" : "beams");
        status = EXIT_USAGE;
    }
    uint32_t by_caller = given.given;
    if (by_caller & NW_GENERATION_BIT(NW_GENERATION_MAX_NEW_TOKENS))
        by_caller |= NW_GENERATION_BIT(NW_GENERATION_MAX_LENGTH);
    if (status == -1)
        note_files(o, model, ret, files.given & ~by_caller);
    return status;
}

static int find_piece(nw_model *model, const char *piece, uint32_t *ret_id)
{
    nw_model_info info;
    nw_model_describe(model, &info);
    for (uint32_t id = 0; id < info.vocab_size; id++) {
        size_t      len;
        nw_error    err = {0};
        const char *text = nw_model_piece(model, id, &len, &err);
        if (text == NULL)
            return print_failure(&err);
        if (len == strlen(piece) && memcmp(text, piece, len) == 0) {
            *ret_id = id;
            return -1;
        }
    }
    print_error("--forced-bos: the vocabulary has no piece '%.60s'", piece);
    return EXIT_USAGE;
}

/* The ids of a word as it stands in a text, behind a space. */
static int add_bad_word(nw_model *model, const char *word, nw_bad_words *words)
{
    uint32_t *ids = words->ids + words->id_count;
    size_t    room = NW_ID_LIST_MAX - words->id_count, count;
    nw_error  err = {0};
    if (nw_model_encode_text(model, word, strlen(word), ids, room, &count, &err) != NW_OK)
        return print_failure(&err);
    if (count > room || words->count == NW_BAD_WORDS_MAX) { /* the end token, which is dropped, needs room too */
        print_error("--bad-words: more than %d tokens, or %d words", NW_ID_LIST_MAX - 1, NW_BAD_WORDS_MAX);
        return EXIT_USAGE;
    }
    if (count < 2) {
        print_error("--bad-words: '%.60s' has no tokens", word);
        return EXIT_USAGE;
    }
    words->lens[words->count++] = (uint16_t)(count - 1);
    words->id_count += (uint32_t)count - 1;
    return -1;
}

int generation_resolve(const generation_options *o, nw_model *model, nw_generation_settings *settings)
{
    const char *const *words = o->bad_words.data;
    int                status = -1;
    if (words != NULL && !(o->given.given & NW_GENERATION_BIT(NW_GENERATION_BAD_WORDS_IDS)))
        settings->bad_words_ids = (nw_bad_words){0}; /* the command line's go over the files' */
    for (size_t i = 0; i < o->bad_words.used / sizeof *words && status == -1; i++)
        status = add_bad_word(model, words[i], &settings->bad_words_ids);
    if (status == -1 && o->forced_bos != NULL)
        status = find_piece(model, o->forced_bos, &settings->forced_bos_token_id);
    return status == -1 ? check(model, settings, o->given.given) : status;
}

size_t generation_width(const nw_generation_settings *s)
{
    return s->do_sample ? s->num_return_sequences : s->num_beams;
}

size_t generation_columns(const generation_options *o, const nw_generation_settings *s)
{
    return o->lookup_off || (!s->do_sample && s->num_beams > 1) ? 0 : GUESSES_MAX;
}

size_t generation_passes(const nw_generation_settings *s)
{
    return s->max_new_tokens < ANSWER_USUAL ? s->max_new_tokens : ANSWER_USUAL;
}
