/* Every choice is made by asking nw_plan_make: it alone knows what a lane, a column or a prompt costs. It reads nothing
 * and takes about a millisecond. */
#include "workload.h"

#include "budget.h"

enum {
    LANES_USUAL = 16,    /* columns of one call of a product: beyond, a pass takes longer */
    AHEAD_USUAL = 80,    /* prompts encoded before they are needed */
    AHEAD_WISHED = 63,   /* the fewest, as long as it costs little */
    ENCODE_USUAL = 2048, /* tokens of an encoder pass that only encodes */
    EXTRA_SHARE = 4,     /* of what the budget has above the smallest */
    COLUMNS_MORE_MOST = 256,
    FEW_TOKENS = 32,
};

/* What is to be preferred must take less of the time than this; what encodes fewer prompts than wished than that: how
 * long answers are is a guess. */
#define ABOUT_EQUAL 0.98
#define LITTLE_WORSE 0.9

/* What room for guesses may cost where none is right. */
#define COLUMNS_SLOWER 1.02

/* Bytes that prompts ahead of their turn may take on the disk. */
#define SCRATCH_MOST 4e9

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- refusals ---- */

/* The options with a width of k, at most the one they have. */
static uint64_t smallest_with(nw_model *model, const nw_session_options *o, size_t width, size_t k)
{
    nw_session_options     less = *o;
    nw_generation_settings settings;
    less.max_lanes = less.max_columns = k;
    less.max_encode_tokens = less.max_encoded_ahead = less.max_encoded_tokens = 0;
    if (k < width && o->generation != NULL) {
        settings = *o->generation;
        settings.num_return_sequences = (uint32_t)least(settings.num_return_sequences, k);
        settings.num_beams = (uint32_t)least(settings.num_beams, k);
        less.generation = &settings;
    }
    if (less.max_choices > k)
        less.max_choices = k;
    uint64_t bytes = budget_smallest(model, &less);
    return bytes > 0 ? bytes : UINT64_MAX;
}

static size_t lanes_that_fit(nw_model *model, const nw_session_options *o, size_t width)
{
    size_t fit = 0, not = most(o->max_lanes, 1);
    while (not -fit > 1) {
        size_t middle = fit + (not -fit) / 2;
        if (smallest_with(model, o, width, middle) <= o->budget_bytes)
            fit = middle;
        else
            not = middle;
    }
    return fit;
}

int lanes_refuse(nw_model *model, const nw_session_options *o, size_t width, uint64_t needed)
{
    char   budget_text[16], needed_text[16], few_text[16];
    size_t fit = lanes_that_fit(model, o, width);
    nw_bytes_format(o->budget_bytes, false, budget_text);
    nw_bytes_format(needed, true, needed_text);
    if (o->max_lanes > 1 && fit > 0) {
        const char *what = width < o->max_lanes                                ? "lanes"
                           : o->max_choices > 0                                ? "answers"
                           : o->generation != NULL && o->generation->do_sample ? "samples"
                                                                               : "beams";
        print_error("budget %s is too small for %zu %s: needs %s for %zu tokens in, %zu out; it has room for %zu",
                    budget_text, o->max_lanes, width == 1 ? "lanes" : what, needed_text, o->max_input_tokens,
                    o->max_output_tokens, fit);
        return EXIT_BUDGET;
    }
    nw_session_options few = *o;
    few.max_output_tokens = FEW_TOKENS;
    uint64_t few_needs = o->max_output_tokens > FEW_TOKENS ? budget_smallest(model, &few) : 0;
    nw_bytes_format(few_needs, true, few_text);
    bool helps = few_needs > 0 && few_needs < needed - needed / 16;
    print_error("budget %s is too small: needs %s for %zu tokens in, %zu out%s%s%s", budget_text, needed_text,
                o->max_input_tokens, o->max_output_tokens, helps ? "; " : "", helps ? few_text : "",
                helps ? " with -n 32" : "");
    return EXIT_BUDGET;
}

/* ---- lanes ---- */

/* The most tokens that any `span` prompts in a row have. */
static size_t widest(const workload *w, const nw_session_options *o, size_t span)
{
    if (w->prompts == NULL)
        return span * o->max_input_tokens;
    const size_t *ends = w->prompts->ends.data;
    size_t        widest = 0;
    for (size_t i = 0; i < w->prompts->count; i++) {
        size_t before = i >= span ? ends[i - span] : 0;
        widest = most(widest, ends[i] - before);
    }
    return widest;
}

/* A way to do the work. */
typedef struct {
    size_t live;     /* prompts that have lanes */
    size_t ahead;    /* encoded before there are lanes for them */
    size_t together; /* that one encoder pass takes */
} way;

/* Those in lanes keep their K and V beside those that wait, and may be longer than their neighbours. */
static void set_way(const workload *w, const way *how, nw_session_options *o)
{
    size_t encoded = least(most(w->count, 1), how->live + how->ahead);
    o->max_lanes = o->max_columns = how->live * w->width;
    o->max_encoded_ahead = how->ahead;
    o->max_encode_tokens = how->together > 1 ? most(widest(w, o, how->together), o->max_input_tokens) : 0;
    o->max_encoded_tokens = how->ahead > 0 ? widest(w, o, encoded) + how->live * o->max_input_tokens : 0;
}

/* Passes that an answer takes. It is as long as -n allows only where nothing else is known: answers are seldom longer
 * than what they answer. */
static double passes_of(const workload *w)
{
    size_t known = w->passes;
    if (w->prompts != NULL && w->prompts->count > 0) {
        const size_t *ends = w->prompts->ends.data;
        known = least(known, ends[w->prompts->count - 1] / w->prompts->count);
    }
    return (double)most(known, 1);
}

/* Seconds that a prompt takes, the others' share taken off; 0: the way does not fit. A window of fewer slots than usual
 * keeps the disk waiting now and then. Where nothing is encoded ahead, lanes wait until there are enough of them for an
 * encoder pass, up to half of them. */
static double seconds_of(nw_model *model, const workload *w, const way *how, uint32_t usual_slots,
                         const nw_session_options *o)
{
    nw_session_options with = *o;
    nw_plan            plan;
    nw_error           ignored = {0};
    set_way(w, how, &with);
    if (nw_plan_make(model, &with, &plan, &ignored) != NW_OK)
        return 0;
    double computing = plan.column_cost * (double)with.max_lanes; /* of all columns, as a part of a pass that reads */
    double slots = (double)least(plan.slot_count, usual_slots) / usual_slots;
    double pass = plan.seconds_per_token * (computing > 1 ? computing : 1) * (1.5 - slots / 2);
    double encode = (double)(plan.read.encode + plan.read.cross + plan.read.refill) / plan.disk_rate;
    double scratch =
        (double)plan.read.kv / (double)how->live; /* bytes of one prompt's K and V, if they go to the disk */
    double busy = (double)how->live;
    size_t encoded = how->together, count = most(w->count, 1);
    if (how->ahead > 0) {
        encoded = how->ahead + 1;
    } else if (count > how->live) {
        encoded = least(how->together, most(how->live / 2, 1));
        busy -= (double)(encoded - 1) / 2;
    }
    size_t times = (count + encoded - 1) / encoded;
    if (how->ahead > 0 && scratch * (double)(how->live + how->ahead) > SCRATCH_MOST)
        return 0;
    return pass * passes_of(w) / busy + encode * (double)times / (double)count + scratch / plan.disk_rate;
}

/* The better of two ways: the other one if it takes less than `share` of the time. */
static void consider(nw_model *model, const workload *w, const nw_session_options *o, uint32_t usual_slots, way how,
                     double share, way *best, double *best_seconds)
{
    double seconds = seconds_of(model, w, &how, usual_slots, o);
    if (how.ahead < AHEAD_WISHED && best->ahead >= AHEAD_WISHED && best->live == how.live)
        share = LITTLE_WORSE;
    if (seconds <= 0 || (*best_seconds >= 0 && seconds >= share * *best_seconds))
        return;
    *best = how;
    *best_seconds = seconds;
}

/* `ahead` prompts ahead of their turn, all in one encoder pass. */
static way way_ahead(size_t live, size_t ahead)
{
    return (way){.live = live, .ahead = ahead, .together = most(live, ahead + 1)};
}

/* Looks at ways with `live` prompts in lanes; of about equals the first is taken. */
static void consider_live(nw_model *model, const workload *w, const nw_session_options *o, uint32_t usual_slots,
                          size_t live, way *best, double *best_seconds)
{
    size_t rest = w->count > live ? w->count - live : 0;
    for (size_t ahead = least(rest, AHEAD_USUAL); ahead > 0; ahead /= 2) {
        consider(model, w, o, usual_slots, way_ahead(live, ahead), ABOUT_EQUAL, best, best_seconds);
        if (ahead > AHEAD_WISHED && ahead / 2 < AHEAD_WISHED)
            consider(model, w, o, usual_slots, way_ahead(live, AHEAD_WISHED), ABOUT_EQUAL, best, best_seconds);
    }
    for (size_t together = live; together > 0; together /= 2)
        consider(model, w, o, usual_slots, (way){.live = live, .together = together}, ABOUT_EQUAL, best, best_seconds);
}

/* Between a number ahead and its double there may be one for which there is room too. */
static void consider_between(nw_model *model, const workload *w, const nw_session_options *o, uint32_t usual_slots,
                             way *best, double *best_seconds)
{
    size_t most_ahead = least(w->count > best->live ? w->count - best->live : 0, AHEAD_USUAL);
    for (size_t step = most(best->ahead / 2, 1); step > 0; step /= 2) {
        size_t ahead = best->ahead + step;
        if (ahead <= most_ahead)
            consider(model, w, o, usual_slots, way_ahead(best->live, ahead), 1, best, best_seconds);
    }
}

static way choose_way(nw_model *model, const workload *w, const nw_session_options *o)
{
    way      best = {.live = 1, .together = 1};
    double   seconds = -1;
    nw_plan  plan = {.slot_count = 1};
    nw_error ignored = {0};
    size_t   wanted = most(w->lanes > 0 ? w->lanes / w->width : LANES_USUAL / w->width, 1);
    size_t   live = least(wanted, most(w->count, 1));
    if (w->lanes > 0)
        best.live = live;
    nw_session_options alone = *o;
    set_way(w, &best, &alone);
    if (nw_plan_make(model, &alone, &plan, &ignored) != NW_OK)
        return best;
    for (; live > 0; live = w->lanes > 0 ? 0 : live / 2)
        consider_live(model, w, o, plan.slot_count, live, &best, &seconds);
    if (seconds > 0)
        consider_between(model, w, o, plan.slot_count, &best, &seconds);
    return best;
}

/* ---- columns ---- */

/* Columns that are in vain cost next to nothing but their memory: as many as leave a pass as fast as it is. */
static void choose_columns(nw_model *model, const workload *w, nw_session_options *o)
{
    nw_plan  without, with;
    nw_error ignored = {0};
    size_t   lanes = o->max_lanes, most_more = w->columns_more + w->columns_each * (lanes / w->width);
    if (nw_plan_make(model, o, &without, &ignored) != NW_OK)
        return;
    for (size_t more = least(most_more, COLUMNS_MORE_MOST); more > 0; more /= 2) {
        o->max_columns = lanes + more;
        if (nw_plan_make(model, o, &with, &ignored) == NW_OK && with.slot_count >= without.slot_count &&
            with.seconds_per_token <= COLUMNS_SLOWER * without.seconds_per_token)
            return;
    }
    o->max_columns = lanes;
}

/* ---- together ---- */

bool lanes_fill(nw_model *model, const workload *w, nw_session_options *o)
{
    way how = choose_way(model, w, o);
    set_way(w, &how, o);
    if (budget_smallest(model, o) > o->budget_bytes)
        return false;
    choose_columns(model, w, o);
    return true;
}

int lanes_choose(nw_model *model, const workload *w, nw_session_options *o)
{
    return lanes_fill(model, w, o) ? -1 : lanes_refuse(model, o, w->width, budget_smallest(model, o));
}

bool lanes_reduce(const workload *w, nw_session_options *o)
{
    bool   extras = o->max_columns > o->max_lanes || o->max_encode_tokens > 0 || o->max_encoded_ahead > 0;
    size_t requests = o->max_lanes / w->width;
    if (!extras && (w->lanes > 0 || requests < 2))
        return false;
    if (!extras)
        o->max_lanes = requests / 2 * w->width;
    o->max_columns = o->max_lanes;
    o->max_encode_tokens = o->max_encoded_ahead = o->max_encoded_tokens = 0;
    return true;
}

/* Whether an extra takes no more than its share. */
static bool is_modest(uint64_t budget, uint64_t without, uint64_t with)
{
    return with > 0 && without > 0 && with <= budget && with - without <= (budget - without) / EXTRA_SHARE;
}

void encoding_fill(nw_model *model, size_t rows, nw_session_options *o)
{
    nw_plan  plan, bigger;
    nw_error ignored = {0};
    if (nw_plan_make(model, o, &plan, &ignored) != NW_OK)
        return;
    for (size_t tokens = least(rows, ENCODE_USUAL); tokens > o->max_input_tokens; tokens /= 2) {
        o->max_encode_tokens = tokens;
        if (nw_plan_make(model, o, &bigger, &ignored) == NW_OK &&
            is_modest(o->budget_bytes, plan.smallest, bigger.smallest) &&
            (plan.read.next_pass > 0 || bigger.read.next_pass == 0))
            return;
    }
    o->max_encode_tokens = 0;
}
