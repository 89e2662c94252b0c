#include "targets.h"

#include <string.h>

#include "print.h"

/* The texts themselves may take as much as the text of one prompt. */
static int keep_text(targets *t, const buffer *text, uint64_t budget_bytes)
{
    size_t limit = (size_t)prompts_text_limit(budget_bytes);
    size_t end = t->texts.used + text->used;
    if (!buffer_append(&t->texts, text->data, text->used, limit) || !buffer_append(&t->ends, &end, sizeof end, limit)) {
        print_error("--choices: more answers than this budget has room for");
        return EXIT_BUDGET;
    }
    return -1;
}

int targets_read(targets *t, nw_model *model, const prompt_rules *rules, const char *score, const char *choices)
{
    prompt_rules  own = {.as_ids = rules->as_ids, .budget_bytes = rules->budget_bytes, .vocab_size = rules->vocab_size};
    prompt_source source = {.text = score, .file = choices, .lines = score == NULL};
    buffer        text = {0};
    bool          more = true;
    int           status = prompts_open(&source);
    if (score != NULL)
        source.name = "--score";
    t->single = score != NULL;
    while (status == -1) {
        status = prompts_next(&source, &text, prompts_text_limit(rules->budget_bytes), &more, NULL);
        if (status != -1 || !more)
            break;
        if (text.used == 0) {
            print_error("%s, line %llu: an empty answer", source.name, (unsigned long long)source.line);
            status = EXIT_USAGE;
            break;
        }
        status = keep_text(t, &text, rules->budget_bytes);
        if (status == -1)
            status = prompts_add(&t->ids, model, &own, &source, text.data, text.used);
    }
    if (status == -1 && t->ids.count == 0) {
        print_error("%s: no answers", source.name);
        status = EXIT_USAGE;
    }
    buffer_free(&text);
    prompts_close(&source);
    return status;
}

const char *targets_text(const targets *t, size_t index, size_t *ret_len)
{
    const size_t *ends = t->ends.data;
    size_t        first = index == 0 ? 0 : ends[index - 1];
    *ret_len = ends[index] - first;
    return (const char *)t->texts.data + first;
}

size_t targets_widest(const targets *t, size_t span)
{
    const size_t *ends = t->ids.ends.data;
    size_t        widest = 0;
    for (size_t i = 0; i < t->ids.count; i++) {
        size_t ids = ends[i] - (i >= span ? ends[i - span] : 0);
        widest = ids > widest ? ids : widest;
    }
    return widest;
}

void targets_free(targets *t)
{
    prompts_free(&t->ids);
    buffer_free(&t->texts);
    buffer_free(&t->ends);
}
