#include "ranking.h"

#include <stdlib.h>

#include "print.h"

/* The best first; of equals the one that was given first. */
static int compare_ranks(const void *a, const void *b)
{
    const answer_rank *x = a, *y = b;
    if (x->score > y->score || x->score < y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void sort_targets(const answer_style *style, answer *a)
{
    for (size_t i = 0; i < style->sequences; i++)
        a->ranks[i] = (answer_rank){.score = a->sequences[i].score, .index = i};
    qsort(a->ranks, style->sequences, sizeof *a->ranks, compare_ranks);
}

static double mean_of(const answer_sequence *s)
{
    return s->score / (double)s->count;
}

static bool write_field(const char *text, size_t len)
{
    bool ok = true;
    for (size_t i = 0; i < len && ok; i++)
        ok = text[i] == '\t' ? print_bytes("\\t", 2) : print_line_text(&text[i], 1);
    return ok;
}

void ranking_write(const answer_style *style, answer *a)
{
    bool ok = true;
    if (a->prompt_tokens > 0 && style->targets->single)
        ok = print_json_number(a->sequences[0].score);
    else if (a->prompt_tokens > 0) {
        sort_targets(style, a);
        for (size_t i = 0; i < style->sequences && ok; i++) {
            size_t      len, at = a->ranks[i].index;
            const char *text = targets_text(style->targets, at, &len);
            ok = (i == 0 || print_bytes(style->lines ? "\t" : "\n", 1)) && write_field(text, len) &&
                 print_bytes("\t", 1) && print_json_number(a->sequences[at].score) && print_bytes("\t", 1) &&
                 print_json_number(mean_of(&a->sequences[at]));
        }
    }
    (void)(ok && print_bytes("\n", 1));
}

static bool write_choice_json(const answer_style *style, const answer *a, size_t index)
{
    size_t                 len, count;
    const answer_sequence *s = &a->sequences[index];
    const char            *text = targets_text(style->targets, index, &len);
    const uint32_t        *ids = prompts_ids(&style->targets->ids, index, &count);
    bool                   ok = print_text("{\"index\": %zu, \"text\": \"", index) && print_json_text(text, len) &&
              print_text("\", \"ids\": [");
    for (size_t i = 0; i < count && ok; i++)
        ok = print_text("%s%u", i == 0 ? "" : ", ", ids[i]);
    return ok && print_text("], \"logprob\": ") && print_json_number(s->score) && print_text(", \"mean_logprob\": ") &&
           print_json_number(mean_of(s)) && print_text(", \"logprobs\": [") &&
           print_json_numbers(s->logprobs, s->count) && print_text("]}");
}

bool ranking_write_json(const answer_style *style, answer *a)
{
    bool ok = print_text("\"choices\": [");
    sort_targets(style, a);
    for (size_t i = 0; i < style->sequences && ok && a->prompt_tokens > 0; i++)
        ok = (i == 0 || print_text(", ")) && write_choice_json(style, a, a->ranks[i].index);
    return ok && print_text("]");
}
