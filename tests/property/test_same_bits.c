/* Promise 2: the budget changes time, never output.
 *
 * Each model is asked a few prompts of different lengths. The exact bits of all encoder states, logits and tokens must
 * be the same for every budget, window, share of pins, thread count, device, order of completions, set of kernels,
 * number of lanes and order of prompts. One run with all resident, one thread and one lane is what the others are
 * compared with; variations are first walked over one by one, then drawn together at random.
 *
 *   test_same_bits [SEED [CASES]]    the random part starts at this seed; 1 of them replays one case
 */
#include "same_bits.h"
#include "temp_dir.h"

#include <time.h>

#ifdef NW_SANITIZED
enum { RANDOM_CASES = 3, RANDOM_CASES_MANY = 8, MIXED_SUBJECTS = 1 };
#else
enum { RANDOM_CASES = 16, RANDOM_CASES_MANY = 48, MIXED_SUBJECTS = 3 };
#endif

static void test_subject(const subject *s, uint64_t seed, unsigned cases, bool random_only)
{
    answers         want;
    variation       reference = usual();
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (!run(s, &reference, &want))
        return;
    if (!random_only) {
        vary_budget(s, &want);
        vary_window_and_pins(s, &want);
        vary_threads_and_lanes(s, &want);
        vary_device_and_kernels(s, &want);
    }
    for (unsigned i = 0; i < cases; i++)
        vary_at_random(s, &want, seed + i, "test_same_bits");
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%s: %zu prompts, %.1f s\n", s->name, s->prompt_count,
           (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9);
}

/* Greedy answers, samples and beams beside each other: what is drawn depends on the seed, sample and position alone. */
static void test_mixed(const char *name, uint64_t seed, unsigned cases, bool random_only)
{
    subject                s = subject_golden(name);
    nw_generation_settings sampled = nw_generation_defaults(), searched;
    sampled.decoder_start_token_id = 0;
    sampled.eos_token_id = (nw_end_ids){.count = 1, .ids = {1}};
    searched = sampled;
    sampled.do_sample = true;
    sampled.num_return_sequences = 2;
    sampled.temperature = 0.8;
    sampled.top_p = 0.9;
    sampled.repetition_penalty = 1.2;
    searched.num_beams = 3;
    searched.num_return_sequences = 2;
    searched.no_repeat_ngram_size = 2;
    s.tokens = 14; /* enough for guesses */
    s.sampled = &sampled;
    s.searched = &searched;
    answers   want;
    variation reference = usual();
    if (!run(&s, &reference, &want))
        return;
    if (!random_only)
        vary_threads_and_lanes(&s, &want);
    for (unsigned i = 0; i < (cases != 0 ? cases : RANDOM_CASES); i++)
        vary_at_random(&s, &want, seed + i, "test_same_bits");
    printf("%s, mixed: %zu prompts\n", name, s.prompt_count);
}

/* Long prompts, whose heads one thread attends to in pieces of many queries, with K and V brought together, and several
 * threads in smaller ones. */
static void test_long_prompts(const char *dir)
{
    static const size_t lengths[] = {300, 130};
    subject             s = subject_make("many tiles, long prompts", dir, lengths, 2, MANY_TILES_VOCAB, 3);
    answers             want;
    variation           reference = usual();
    if (run(&s, &reference, &want))
        vary_threads_and_lanes(&s, &want);
    printf("%s: %zu prompts\n", s.name, s.prompt_count);
}

int main(int argc, char **argv)
{
    static const char *const goldens[] = {"t5-v1.1", "t5-v1.0-tied",  "umt5",         "flan-bf16-shards",
                                          "byt5",    "odd-sizes",     "encoder-only", "numbers-t5",
                                          "long",    "bin-shards-f16"};
    static const char *const mixed[] = {"t5-v1.1", "numbers-t5", "t5-v1.0-tied"};
    static const size_t      lengths_many[] = {7, 16, 33, 1};
    uint64_t                 seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    unsigned                 cases = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    bool                     random_only = argc > 1;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        subject s = subject_golden(goldens[i]);
        test_subject(&s, seed, cases != 0 ? cases : RANDOM_CASES, random_only);
    }
    for (size_t i = 0; i < MIXED_SUBJECTS; i++)
        test_mixed(mixed[i], seed, cases, random_only);
    temp_dir temp = temp_dir_make();
    for (int tied = 0; tied < 2; tied++) {
        temp_path dir = temp_dir_path(&temp, tied ? "tied" : "own-head");
        many_tiles_write(dir.text, tied, 5);
        subject s =
            subject_make(tied ? "many tiles, tied" : "many tiles", dir.text, lengths_many, 4, MANY_TILES_VOCAB, 3);
        test_subject(&s, seed, cases != 0 ? cases : RANDOM_CASES_MANY, random_only);
        if (tied == 0)
            test_long_prompts(dir.text);
    }
    temp_dir_remove(&temp);
    printf("%u runs, %u failed\n", runs, failures);
    return failures == 0 ? 0 : 1;
}
