/* Drafts: what is looked up, and how long they are for what they cost. */
#include "model/draft.h"

#include "base/check.h"
#include "draws.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Digits as ids; '$' is the end token. */
static size_t ids_of(const char *text, uint32_t *ids)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(unsigned char)text[i];
    return n;
}

static void check_lookup(const char *input, const char *written, size_t max, const char *want, size_t want_match)
{
    uint32_t       input_ids[64], written_ids[64], draft[64], want_ids[64];
    const uint32_t end = '$';
    nw_draft_text  t = {.input = input_ids, .written = written_ids, .eos_ids = &end, .eos_count = 1};
    size_t         match = 99;
    t.input_count = ids_of(input, input_ids);
    t.written_count = ids_of(written, written_ids);
    size_t count = nw_draft_lookup(&t, max, draft, &match);
    assert_int_equal(count, ids_of(want, want_ids));
    assert_memory_equal(draft, want_ids, count * sizeof *draft);
    assert_int_equal(match, want_match);
}

static void test_lookup(void **state)
{
    (void)state;
    check_lookup("12345678$", "", 4, "", 0);
    check_lookup("12345678$", "9", 4, "", 0);
    check_lookup("12345678$", "23", 4, "4567", 2);
    check_lookup("12345678$", "923456", 4, "78$", 4); /* longer matches count as 4; the end token is the last */
    check_lookup("12345678$", "78", 4, "$", 2);
    check_lookup("1234", "34", 4, "", 0);      /* nothing follows it */
    check_lookup("a1b1c$", "1", 1, "b", 1);    /* the first of the input */
    check_lookup("", "a1b1c1", 2, "c1", 1);    /* the latest of what is written */
    check_lookup("12x", "12y12", 2, "y1", 2);  /* what is written goes first */
    check_lookup("012x", "12y012", 2, "x", 3); /* unless the input has the longer match */
    check_lookup("", "ababab", 5, "ababa", 4); /* a period goes on */
    check_lookup("", "aaaa", 3, "aaa", 3);
    check_lookup("", "xx", 0, "", 1);
}

/* Every guess follows an earlier occurrence, and no longer match was missed. */
static void test_drawn_lookups(void **state)
{
    (void)state;
    random_state = 8;
    size_t found = 0;
    for (size_t round = 0; round < 5000; round++) {
        uint32_t      text[2][40], draft[NW_DRAFT_MAX];
        nw_draft_text t = {.input = text[0], .written = text[1]};
        t.input_count = random_below(40);
        t.written_count = random_below(40);
        for (size_t i = 0; i < 40; i++) {
            text[0][i] = (uint32_t)random_below(5);
            text[1][i] = (uint32_t)random_below(5);
        }
        size_t match, longest = 0, count = nw_draft_lookup(&t, NW_DRAFT_MAX, draft, &match);
        for (size_t which = 0; which < 2; which++) {
            size_t n = which == 0 ? t.input_count : t.written_count;
            for (size_t at = 1; at < n; at++) {
                for (size_t len = 1; len <= NW_DRAFT_MATCH && len <= at && len <= t.written_count; len++) {
                    bool same = memcmp(text[which] + at - len, text[1] + t.written_count - len, len * 4) == 0;
                    longest = same && len > longest ? len : longest;
                }
            }
        }
        assert_int_equal(match, longest);
        assert_int_equal(count > 0, longest > 0);
        found += count > 0;
    }
    assert_in_range(found, 1000, 5000);
}

static void learn(nw_draft_control *c, size_t times, size_t drafted, size_t accepted)
{
    for (size_t i = 0; i < times; i++)
        nw_draft_learn(c, 2, drafted, accepted);
}

static void test_length_follows_success(void **state)
{
    (void)state;
    nw_draft_control c = {0};
    size_t           fresh = nw_draft_length(&c, 2, 0.1, NW_DRAFT_MAX);
    assert_in_range(fresh, 1, 4);
    learn(&c, 20, 8, 8);
    size_t good = nw_draft_length(&c, 2, 0.1, NW_DRAFT_MAX);
    assert_in_range(good, 8, NW_DRAFT_MAX);
    assert_int_equal(nw_draft_length(&c, 2, 0.1, 3), 3);
    assert_int_equal(nw_draft_length(&c, 2, 2.0, NW_DRAFT_MAX), 0);
    assert_int_equal(nw_draft_length(&c, 1, 0.1, NW_DRAFT_MAX), fresh); /* matches of other lengths are their own */
    learn(&c, 200, 8, 0);
    size_t bad = nw_draft_length(&c, 2, 0.1, NW_DRAFT_MAX);
    assert_int_equal(bad, 0);
    assert_int_equal(nw_draft_length(&c, 1, 0, NW_DRAFT_MAX), NW_DRAFT_MAX); /* columns that cost nothing */
    assert_int_equal(nw_draft_length(&c, 0, 0, NW_DRAFT_MAX), 0);
    assert_int_equal(nw_draft_length(&c, 2, 0, 0), 0);
}

/* Where drafts do not pay one is still tried now and then, and success brings them back. */
static void test_recovers(void **state)
{
    (void)state;
    nw_draft_control c = {0};
    learn(&c, 200, 4, 0);
    size_t tries = 0, calls = 0;
    for (; calls < 20000; calls++) {
        size_t n = nw_draft_length(&c, 2, 0.2, 8);
        if (n > 1)
            break;
        if (n == 1) {
            nw_draft_learn(&c, 2, 1, 1);
            tries++;
        }
    }
    assert_in_range(tries, 5, 100);
    assert_in_range(calls, 100, 10000);
}

/* The length is the one with the most tokens for a unit of time, by simulation of independent tokens. */
static void test_length_is_best(void **state)
{
    (void)state;
    random_state = 6;
    static const double shares[] = {0.3, 0.6, 0.8, 0.95};
    static const double costs[] = {0.02, 0.1, 0.3};
    for (size_t i = 0; i < 12; i++) {
        double           share = shares[i % 4], cost = costs[i / 4], best = 0, chosen_rate = 0;
        nw_draft_control c = {0};
        c.match[3].tried = 1e9;
        c.match[3].accepted = 1e9 * share;
        size_t chosen = nw_draft_length(&c, 3, cost, NW_DRAFT_MAX);
        for (size_t n = 0; n <= NW_DRAFT_MAX; n++) {
            size_t tokens = 0;
            for (size_t pass = 0; pass < 4000; pass++) {
                tokens++;
                for (size_t k = 0; k < n && (double)random_u32() < share * 0x1p32; k++)
                    tokens++;
            }
            double rate = (double)tokens / 4000 / (1 + (double)n * cost);
            best = rate > best ? rate : best;
            chosen_rate = n == chosen ? rate : chosen_rate;
        }
        assert_true(chosen_rate > 0.97 * best);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_drawn_lookups),
        cmocka_unit_test(test_length_follows_success),
        cmocka_unit_test(test_recovers),
        cmocka_unit_test(test_length_is_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
