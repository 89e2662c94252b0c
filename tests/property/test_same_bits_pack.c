/* A pack that is not lossy runs with the bits of the checkpoint that it was made of: in every form, at every budget,
 * thread count, device and set of kernels. What test_same_bits asks of a checkpoint alone is asked here of its packs,
 * and compared with one run of the checkpoint.
 *
 *   test_same_bits_pack [SEED [CASES]]    the random part starts at this seed; 1 of them replays one case
 */
#define SAME_BITS_FAKE_SEEDS 4
#include "same_bits.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <time.h>

#ifdef NW_SANITIZED
/* Sanitizers look for races and strays, which a few models show as well as many. */
enum { RANDOM_CASES = 2, RANDOM_CASES_MANY = 2, MANY_TILES_MODELS = 1, PACKS_VARIED = 1, FORMS_TRIED = 2 };
static const char *const goldens[] = {"t5-v1.1", "numbers-t5"};
#else
enum { RANDOM_CASES = 4, RANDOM_CASES_MANY = 12, MANY_TILES_MODELS = 2, PACKS_VARIED = 2, FORMS_TRIED = 4 };
static const char *const goldens[] = {"t5-v1.1",      "flan-bf16-shards", "odd-sizes",
                                      "encoder-only", "numbers-t5",       "bin-shards-f16"};
#endif

typedef struct {
    uint64_t seed;
    unsigned cases;
    bool     random_only;
} amount;

/* The three forms; and for what is not f32, wider: the values are the same. */
static const struct {
    const char *name;
    nw_compress compress;
    nw_type     type;
} forms[] = {{"packed", NW_COMPRESS_PACKED, NW_TYPE_KEEP},
             {"slim", NW_COMPRESS_SLIM, NW_TYPE_KEEP},
             {"off", NW_COMPRESS_OFF, NW_TYPE_KEEP},
             {"packed as f32", NW_COMPRESS_PACKED, NW_TYPE_F32}};

static void test_packs(const subject *checkpoint, const temp_dir *dir, amount n)
{
    answers         want;
    variation       reference = usual();
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (!run(checkpoint, &reference, &want))
        return;
    for (size_t i = 0; i < FORMS_TRIED; i++) {
        char            name[128];
        temp_path       packed = temp_dir_path(dir, "packed");
        nw_pack_options o = {.dir = packed.text, .compress = forms[i].compress, .type = forms[i].type, .threads = 2};
        nw_pack_result  r;
        nw_error        err = {0};
        o.shard_bytes_max = i == 0 ? 3 << 20 : 0;
        snprintf(name, sizeof name, "%s, %s", checkpoint->name, forms[i].name);
        NW_CHECK(model_pack(checkpoint->dir, &o, NULL, &r, &err) == NW_OK);
        subject s = *checkpoint;
        s.name = name;
        snprintf(s.dir, sizeof s.dir, "%s", packed.text);
        if (!n.random_only)
            vary_device_and_kernels(&s, &want);
        if (!n.random_only && i < PACKS_VARIED) {
            vary_budget(&s, &want);
            vary_window_and_pins(&s, &want);
            vary_threads_and_lanes(&s, &want);
        }
        for (unsigned k = 0; k < n.cases; k++)
            vary_at_random(&s, &want, n.seed + k, "test_same_bits_pack");
        temp_dir_empty(dir->path);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%s: %.1f s\n", checkpoint->name, (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9);
}

int main(int argc, char **argv)
{
    static const size_t lengths[] = {7, 16, 33, 1};
    unsigned            cases = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    amount              n = {.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, .random_only = argc > 1};
    temp_dir            dir = temp_dir_make(), models = temp_dir_make();
    printf("seed %llu\n", (unsigned long long)n.seed);
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        subject s = subject_golden(goldens[i]);
        n.cases = cases != 0 ? cases : RANDOM_CASES;
        test_packs(&s, &dir, n);
    }
    for (int tied = 0; tied < MANY_TILES_MODELS; tied++) {
        const char *name = tied ? "many tiles, tied" : "many tiles";
        temp_path   path = temp_dir_path(&models, tied ? "tied" : "own-head");
        many_tiles_write(path.text, tied, 5);
        subject s = subject_make(name, path.text, lengths, 4, MANY_TILES_VOCAB, 3);
        n.cases = cases != 0 ? cases : RANDOM_CASES_MANY;
        test_packs(&s, &dir, n);
    }
    temp_dir_remove(&dir);
    temp_dir_remove(&models);
    printf("%u runs, %u failed\n", runs, failures);
    return failures == 0 ? 0 : 1;
}
