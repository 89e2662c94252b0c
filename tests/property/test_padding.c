/* Padded inputs against a slow encoder in double precision (there are no reference vectors for them): pads masked or
 * attended to, behind inputs shorter and longer than one group of columns. And bit for bit: masked pads change nothing
 * for the tokens, attended ones are what the same ids in the input give, and zero is zero.
 */
#include "narrows.h"
#include "reference_encoder.h"

#include <math.h>
#include <string.h>

#define TOLERANCE 1e-4

enum { TOKENS_MAX = 64, WIDTH_MAX = 128 };

static unsigned failures, checks;
static double   worst;

static void check(bool ok, const char *name, const char *what, size_t count, size_t pad_to)
{
    checks++;
    if (!ok && failures++ < 20)
        printf("FAILED %s: %s: %zu tokens, padded to %zu\n", name, what, count, pad_to);
}

static double largest_difference(const float *have, const double *want, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - want[i]);
        largest = d > largest || d != d ? d : largest;
    }
    return largest;
}

static bool is_close(const float *have, const double *want, size_t n)
{
    double largest = largest_difference(have, want, n);
    worst = largest > worst ? largest : worst;
    return largest <= TOLERANCE;
}

typedef struct {
    const char *name;
    nw_model   *model;
    nw_session *session;
    size_t      d;
    uint32_t    ids[TOKENS_MAX]; /* pads behind the tokens */
    float       alone[TOKENS_MAX * WIDTH_MAX], have[TOKENS_MAX * WIDTH_MAX];
} subject;

static void encode(subject *s, nw_encode_request q, float *states)
{
    nw_error err = {0};
    q.ids = s->ids;
    memset(states, 0xa5, sizeof s->have);
    check(nw_session_encode(s->session, &q, states, &err) == NW_OK, s->name, err.msg, q.count, q.pad_to);
}

static bool all_zero(const float *states, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (states[i] != 0)
            return false;
    }
    return true;
}

static void test_length(subject *s, size_t count, size_t pad_to)
{
    size_t  row = s->d * sizeof(float);
    double *masked = reference_encode(s->model, s->ids, pad_to, count);
    double *attended = reference_encode(s->model, s->ids, pad_to, pad_to);

    encode(s, (nw_encode_request){.count = count}, s->alone);
    check(is_close(s->alone, masked, count * s->d), s->name, "the tokens alone", count, pad_to);
    encode(s, (nw_encode_request){.count = count, .pad_to = pad_to}, s->have);
    check(is_close(s->have, masked, pad_to * s->d), s->name, "masked", count, pad_to);
    check(memcmp(s->have, s->alone, count * row) == 0, s->name, "masked pads changed bits", count, pad_to);
    encode(s, (nw_encode_request){.count = count, .pad_to = pad_to, .zero_pads = true}, s->have);
    check(memcmp(s->have, s->alone, count * row) == 0, s->name, "zero pads changed bits", count, pad_to);
    check(all_zero(s->have + count * s->d, (pad_to - count) * s->d), s->name, "zero pads", count, pad_to);

    encode(s, (nw_encode_request){.count = pad_to}, s->alone);
    encode(s, (nw_encode_request){.count = count, .pad_to = pad_to, .attend_pads = true}, s->have);
    check(is_close(s->have, attended, pad_to * s->d), s->name, "attended", count, pad_to);
    check(memcmp(s->have, s->alone, pad_to * row) == 0, s->name, "attended pads are ids", count, pad_to);
    encode(s, (nw_encode_request){.count = count, .pad_to = pad_to, .attend_pads = true, .zero_pads = true}, s->have);
    check(memcmp(s->have, s->alone, count * row) == 0, s->name, "attended, then zero", count, pad_to);
    check(all_zero(s->have + count * s->d, (pad_to - count) * s->d), s->name, "attended, then zero", count, pad_to);
    /* The two ways differ, or the tests above say nothing. */
    check(pad_to == count || largest_difference(s->have, masked, count * s->d) > TOLERANCE, s->name,
          "masking is of no effect", count, pad_to);
    free(masked), free(attended);
}

static void test_refused(subject *s, const char *what, nw_encode_request q)
{
    nw_error err = {0};
    float    states[WIDTH_MAX] = {0};
    q.ids = s->ids;
    check(nw_session_encode(s->session, &q, states, &err) == NW_E_ARG && err.msg[0] != '\0' && all_zero(states, s->d),
          s->name, what, q.count, q.pad_to);
}

static void test_subject(const char *name, bool encode_only)
{
    subject           *s = calloc(1, sizeof *s);
    nw_error           err = {0};
    char               dir[512];
    nw_session_options o = {
        .budget_bytes = 256 << 20, .max_input_tokens = 44, .threads = 3, .force = true, .encode_only = encode_only};
    snprintf(dir, sizeof dir, "%s/goldens/%s", NW_TEST_DATA, name);
    s->name = name;
    NW_CHECK(nw_model_open(&(nw_model_options){.path = dir}, &s->model, &err) == NW_OK);
    NW_CHECK(nw_session_open(s->model, &o, &s->session, &err) == NW_OK);
    s->d = s->model->config.d_model;
    NW_CHECK(s->d <= WIDTH_MAX);
    static const size_t lengths[][2] = {{1, 2}, {1, 40}, {5, 9}, {9, 9}, {12, 30}, {16, 17}, {17, 20}, {20, 44}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const nw_config *c = &s->model->config;
        for (size_t k = 0; k < TOKENS_MAX; k++)
            s->ids[k] = k < lengths[i][0] ? 2 + (uint32_t)(k * 37 + i * 11) % (c->vocab_size - 2) : c->pad_id;
        test_length(s, lengths[i][0], lengths[i][1]);
    }
    test_refused(s, "no tokens", (nw_encode_request){.count = 0, .pad_to = 4});
    test_refused(s, "padded to less", (nw_encode_request){.count = 5, .pad_to = 4});
    test_refused(s, "too long", (nw_encode_request){.count = 45});
    test_refused(s, "padded to too much", (nw_encode_request){.count = 5, .pad_to = 45});
    test_refused(s, "padded to all there is", (nw_encode_request){.count = 5, .pad_to = SIZE_MAX});
    /* What is not computed has no bound. */
    encode(s, (nw_encode_request){.count = 5, .pad_to = TOKENS_MAX, .zero_pads = true}, s->have);
    check(all_zero(s->have + 5 * s->d, (TOKENS_MAX - 5) * s->d), s->name, "zero pads beyond the maximum", 5,
          TOKENS_MAX);
    nw_session_close(s->session);
    nw_model_close(s->model);
    free(s);
}

int main(void)
{
    static const char *const names[] = {"t5-v1.0-tied", "t5-v1.1", "umt5",  "encoder-only", "odd-sizes",
                                        "ul2",          "madlad",  "gelu-exact"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_subject(names[i], true);
        test_subject(names[i], false);
    }
    printf("%u checks, %u failed; largest difference %.2g (allowed %.2g)\n", checks, failures, worst, TOLERANCE);
    return failures == 0 ? 0 : 1;
}
