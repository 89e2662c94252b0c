/* The bundled model end to end: from text to ids to tokens to text, each exactly as the reference has it.
 *
 *   test_numbers [kernels]     "portable", "avx2", ...; the fastest by default
 */
#include "narrows.h"
#include "vectors.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { INPUT_MAX = 64, OUTPUT_MAX = 64 };

static const char *kernels;
static vectors     all;
static nw_model   *model;
static nw_session *session;

static int open_session(void **state)
{
    (void)state;
    nw_error           err = {0};
    nw_session_options o = {.budget_bytes = 128 << 20,
                            .max_input_tokens = INPUT_MAX,
                            .max_output_tokens = OUTPUT_MAX,
                            .keep_tokenizer = true,
                            .kernels = kernels};
    golden_need(nw_model_open(&(nw_model_options){.path = NW_TEST_DATA "/numbers-t5"}, &model, &err) == NW_OK, "model",
                &err);
    golden_need(nw_session_open(model, &o, &session, &err) == NW_OK, "session", &err);
    all = vectors_open();
    return 0;
}

static int close_session(void **state)
{
    (void)state;
    vectors_close(&all);
    session = nw_session_close(session);
    model = nw_model_close(model);
    return 0;
}

static void assert_ids(const char *text, const uint32_t *have, size_t count, const uint32_t *want, size_t want_count)
{
    if (count != want_count || memcmp(have, want, count * sizeof *have) != 0)
        fail_msg("other ids for '%s': %zu, not %zu", text, count, want_count);
}

static void test_text_to_ids(void **state)
{
    (void)state;
    uint32_t want[VECTOR_IDS_MAX], have[VECTOR_IDS_MAX];
    for (int i = 0; i < cJSON_GetArraySize(all.list); i++) {
        const cJSON *object = cJSON_GetArrayItem(all.list, i);
        const char  *text = vector_text(object, "text");
        size_t       want_count = vector_ids(object, "input_ids", want), count = 0;
        nw_error     err = {0};
        assert_int_equal(nw_model_encode_text(model, text, strlen(text), have, VECTOR_IDS_MAX, &count, &err), NW_OK);
        assert_ids(text, have, count, want, want_count);
    }
}

/* What the tokens say, in a buffer that the next call reuses. */
static const char *text_of(const uint32_t *ids, size_t count)
{
    static char buf[(OUTPUT_MAX + 1) * 64 + NW_TEXT_MAX];
    nw_text     text = {0};
    size_t      len = 0;
    for (size_t i = 0; i <= count; i++)
        len += nw_model_decode_text(model, &text, i < count ? ids[i] : NW_TEXT_END, buf + len, sizeof buf - 1 - len);
    buf[len] = '\0';
    return buf;
}

static void test_greedy_answers(void **state)
{
    (void)state;
    uint32_t ids[VECTOR_IDS_MAX], want[VECTOR_IDS_MAX], have[OUTPUT_MAX];
    for (size_t i = 0; i < all.greedy_count; i++) {
        const cJSON *object = all.greedy[i];
        const char  *text = vector_text(object, "text");
        nw_request   q = {.input_ids = ids, .input_count = vector_ids(object, "input_ids", ids)};
        nw_result    r = {.ids = have};
        nw_error     err = {0};
        assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
        assert_int_equal(r.finish, NW_FINISH_EOS);
        assert_ids(text, have, r.count, want, vector_ids(object, "sequences", want));
        assert_string_equal(text_of(have, r.count), vector_text(object, "texts"));
    }
    nw_stats stats;
    nw_session_stats(session, &stats);
    print_message("%zu prompts greedily, with the %s kernels\n", all.greedy_count, stats.kernels);
    if (kernels != NULL)
        assert_string_equal(stats.kernels, kernels);
}

int main(int argc, char **argv)
{
    kernels = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_to_ids),
        cmocka_unit_test(test_greedy_answers),
    };
    return cmocka_run_group_tests(tests, open_session, close_session);
}
