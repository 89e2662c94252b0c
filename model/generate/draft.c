/* Prompt lookup, and when it pays. Everything is looked for anew for each draft: a few thousand ids take microseconds,
 * a pass takes milliseconds. */
#include "model/draft.h"

#include "base/check.h"

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

/* How many ids before text[at], at most NW_DRAFT_MATCH, are also the last ones written. */
static size_t match_before(const nw_draft_text *t, const uint32_t *text, size_t at)
{
    size_t most = nw_min_size(nw_min_size(at, t->written_count), NW_DRAFT_MATCH);
    size_t n = 0;
    while (n < most && text[at - 1 - n] == t->written[t->written_count - 1 - n])
        n++;
    return n;
}

static bool is_end(const nw_draft_text *t, uint32_t id)
{
    for (size_t i = 0; i < t->eos_count; i++) {
        if (t->eos_ids[i] == id)
            return true;
    }
    return false;
}

size_t nw_draft_lookup(const nw_draft_text *t, size_t max, uint32_t *draft, size_t *ret_match)
{
    size_t best = 0, from = 0;
    bool   in_input = false;
    for (size_t at = t->written_count; at-- > 1;) { /* the latest first */
        size_t n = match_before(t, t->written, at);
        if (n > best) {
            best = n;
            from = at;
        }
    }
    for (size_t at = 1; at < t->input_count; at++) {
        size_t n = match_before(t, t->input, at);
        if (n > best) {
            best = n;
            from = at;
            in_input = true;
        }
    }
    *ret_match = best;
    size_t count = 0;
    while (best > 0 && count < max) {
        size_t at = from + count;
        if (in_input && at >= t->input_count)
            break;
        uint32_t id = in_input ? t->input[at] : at < t->written_count ? t->written[at] : draft[at - t->written_count];
        draft[count++] = id;
        if (is_end(t, id))
            break;
    }
    return count;
}

/* ---- length ------------------------------------------------------------------------------------------------------ */

/* A draft token that was tried counts half after 22 more. Before anything was tried, half of them are expected to be
 * right: as if two had been tried. */
static const double decay = 31.0 / 32.0;
static const double prior_tried = 2, prior_accepted = 1;

/* With nothing to gain, every so many-th match is tried with one token. */
enum { PROBE_INTERVAL = 32 };

size_t nw_draft_length(nw_draft_control *c, size_t match, double column_cost, size_t max)
{
    NW_CHECK(match <= NW_DRAFT_MATCH);
    max = nw_min_size(max, NW_DRAFT_MAX);
    if (match == 0 || max == 0)
        return 0;
    double share = (c->match[match].accepted + prior_accepted) / (c->match[match].tried + prior_tried);
    double power = 1, tokens = 1, best_rate = 1;
    size_t best = 0;
    for (size_t n = 1; n <= max; n++) {
        power *= share;
        tokens += power;
        double rate = tokens / (1 + (double)n * column_cost);
        if (rate > best_rate) {
            best_rate = rate;
            best = n;
        }
    }
    if (best > 0)
        c->match[match].skipped = 0;
    else if (++c->match[match].skipped >= PROBE_INTERVAL) {
        c->match[match].skipped = 0;
        best = 1;
    }
    return best;
}

void nw_draft_learn(nw_draft_control *c, size_t match, size_t drafted, size_t accepted)
{
    NW_CHECK(match <= NW_DRAFT_MATCH && accepted <= drafted);
    /* What comes after the first token that was refused was never tried. */
    size_t tried = nw_min_size(accepted + 1, drafted);
    for (size_t i = 0; i < tried; i++) {
        c->match[match].tried = c->match[match].tried * decay + 1;
        c->match[match].accepted = c->match[match].accepted * decay + (i < accepted ? 1 : 0);
    }
}
