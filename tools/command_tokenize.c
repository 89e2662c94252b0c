/* tokenize and detokenize: text to ids and back, with the tokenizer that a run would use. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "prompts.h"

enum { KEY_PIECES = 512, KEY_LINES };

typedef struct {
    options     common;
    const char *file;
    bool        pieces, lines;
    buffer      words; /* the arguments, joined by spaces */
} token_options;

static const struct argp_option tokenize_options[] = {
    {0, 0, 0, 0, "Text:", 2},
    {"file", 'f', "FILE", 0, "Read the text from FILE, all of it; - is standard input", 2},
    {"lines", KEY_LINES, 0, 0, "Each line is a text of its own and gives one line of ids", 2},
    {"pieces", KEY_PIECES, 0, 0, "Each id on a line of its own, with its piece", 6},
    {0},
};

static const struct argp_option detokenize_options[] = {
    {0, 0, 0, 0, "Ids:", 2},
    {"file", 'f', "FILE", 0, "Read the ids from FILE; - is standard input", 2},
    {"lines", KEY_LINES, 0, 0, "Each line of ids is a text of its own and gives one line", 2},
    {0},
};

static error_t parse_tokens(int key, char *arg, struct argp_state *state)
{
    token_options *o = (token_options *)state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->child_inputs[1] = &o->common; return 0;
    case ARGP_KEY_ARG:
        if (o->words.used > 0 && !buffer_append(&o->words, " ", 1, SIZE_MAX))
            return ENOMEM;
        return buffer_append(&o->words, arg, strlen(arg), SIZE_MAX) ? 0 : ENOMEM;
    case 'f': o->file = arg; return 0;
    case KEY_PIECES: o->pieces = true; return 0;
    case KEY_LINES: o->lines = true; return 0;
    case ARGP_KEY_END:
        if (o->common.model == NULL)
            return options_fail(&o->common, "no model: -m MODEL is missing");
        if (o->words.data != NULL && o->file != NULL)
            return options_fail(&o->common, "arguments and --file exclude each other");
        return o->words.data == NULL || buffer_append(&o->words, "", 1, SIZE_MAX) ? 0 : ENOMEM;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0}, {&options_output_argp, 0, NULL, 0}, {0}};

static const struct argp tokenize_argp = {
    .options = tokenize_options,
    .parser = parse_tokens,
    .args_doc = "[TEXT...]",
    .doc = "Writes the token ids of a text on one line, the end token included. Without TEXT and --file the text is "
           "read from "
           "standard input."
           "\vExamples:\n"
           "  narrows tokenize -m flan-t5-xl \"Good morning.\"\n"
           "  narrows tokenize -m flan-t5-xl --pieces \"Good morning.\"",
    .children = children,
};

static const struct argp detokenize_argp = {
    .options = detokenize_options,
    .parser = parse_tokens,
    .args_doc = "[ID...]",
    .doc = "Writes the text of token ids. Special tokens have none. Without ID and --file the ids are read from "
           "standard input."
           "\vExamples:\n"
           "  narrows detokenize -m flan-t5-xl 1804 1379 5 1\n"
           "  narrows tokenize -m flan-t5-xl \"Good morning.\" | narrows detokenize -m flan-t5-xl",
    .children = children,
};

/* ---- tokenize
 * --------------------------------------------------------------------------------------------------------- */

static bool write_piece(nw_model *model, uint32_t id, bool json)
{
    nw_error    err = {0};
    size_t      len = 0;
    const char *piece = nw_model_piece(model, id, &len, &err);
    if (piece == NULL)
        len = 0;
    if (!json)
        return print_text("%u", id) && print_bytes("\t", 1) && print_line_text(piece, len) && print_bytes("\n", 1);
    return print_text("{\"id\": %u, \"piece\": \"", id) && print_json_text(piece, len) && print_text("\"}");
}

static void write_ids(const token_options *o, nw_model *model, const uint32_t *ids, size_t count)
{
    bool        json = o->common.json, ok = !json || print_text("[");
    const char *between = json ? ", " : o->pieces ? "" : " ";
    for (size_t i = 0; i < count && ok; i++) {
        ok = print_text("%s", i == 0 ? "" : between);
        if (ok)
            ok = o->pieces ? write_piece(model, ids[i], json) : print_text("%u", ids[i]);
    }
    if (ok && (json || !o->pieces))
        print_text(json ? "]\n" : "\n");
}

/* ---- detokenize
 * ------------------------------------------------------------------------------------------------------- */

static void write_text(const token_options *o, nw_model *model, const uint32_t *ids, size_t count)
{
    nw_text decoder = {0};
    char    text[NW_TEXT_MAX];
    bool    json = o->common.json, ok = !json || print_text("\"");
    for (size_t i = 0; i <= count && ok; i++) {
        size_t len = nw_model_decode_text(model, &decoder, i < count ? ids[i] : NW_TEXT_END, text, sizeof text);
        ok = json ? print_json_text(text, len) : o->lines ? print_line_text(text, len) : print_bytes(text, len);
    }
    if (ok)
        print_text(json ? "\"\n" : "\n");
}

/* ---- together ---- */

static int convert(const token_options *o, nw_model *model, bool to_text)
{
    nw_model_info info;
    nw_error      err = {0};
    size_t        len;
    nw_model_describe(model, &info);
    if (to_text && nw_model_piece(model, info.eos_id, &len, &err) == NULL)
        return print_failure(&err);
    prompt_source source = {.text = o->words.data, .file = o->file, .lines = o->lines};
    prompt_rules  rules = {.as_ids = to_text, .empty_allowed = o->lines, .vocab_size = info.vocab_size};
    prompts       p = {0};
    int           status = prompts_read(&p, model, &rules, &source);
    for (size_t i = 0; i < p.count && status == -1 && print_bytes("", 0); i++) {
        size_t          count;
        const uint32_t *ids = prompts_ids(&p, i, &count);
        if (to_text)
            write_text(o, model, ids, count);
        else
            write_ids(o, model, ids, count);
    }
    prompts_free(&p);
    return status;
}

static int command_tokens(const struct argp *argp, const char *name, int argc, char **argv, bool to_text)
{
    token_options o = {.common.name = name};
    nw_model     *model = NULL;
    int           status = options_parse(argp, argc, argv, &o.common, &o);
    if (status == -1) {
        status = options_open_model(&o.common, &model);
        if (status == -1)
            status = convert(&o, model, to_text);
        nw_model_close(model);
        status = print_finish(status == -1 ? EXIT_DONE : status);
    }
    buffer_free(&o.words);
    return status;
}

int command_tokenize(int argc, char **argv)
{
    return command_tokens(&tokenize_argp, "narrows tokenize", argc, argv, false);
}
int command_detokenize(int argc, char **argv)
{
    return command_tokens(&detokenize_argp, "narrows detokenize", argc, argv, true);
}
