/* Devices whose direct reads must be multiples of 16 or 64 KiB, as where pages are that large, change no bit.
 *
 * What the kernel says about a file is put in its place here (statx, which the loader asks for by number), and the fake
 * device refuses what such a device would. Checkpoints and packs are compared with one run of the checkpoint as this
 * machine's disk is; the packs are made by such reads, too.
 */
#define _GNU_SOURCE
#define SAME_BITS_FAKE_SEEDS 2
#include "loader/file.h"
#include "same_bits.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint32_t forced; /* 0: as it is */

/* In place of libc's. The words of struct statx: the mask, and the two alignments from byte 152 on. */
long syscall(long number, ...)
{
    long    a[6];
    va_list rest;
    va_start(rest, number);
    for (size_t i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_statx && forced != 0 && a[3] == 0x2000) {
        uint32_t *words = (uint32_t *)(uintptr_t)a[4];
        words[0] = 0x2000;
        words[38] = 4;
        words[39] = forced;
        return 0;
    }
    long (*real)(long, ...) = (long (*)(long, ...))(uintptr_t)dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* On a file system that is memory, or refuses O_DIRECT, files are read otherwise, and there is nothing to see here. */
static bool reads_directly(const char *dir)
{
    char     path[1100];
    nw_file  file;
    nw_error err = {0};
    snprintf(path, sizeof path, "%s/config.json", dir);
    NW_CHECK(nw_file_open(path, &file, &err) == NW_OK);
    NW_CHECK(!file.direct || file.align == forced);
    nw_file_close(&file);
    return file.direct;
}

static void check(const subject *s, const answers *want, uint32_t align)
{
    forced = align;
    for (unsigned seed = 0; seed < 4; seed++) {
        nw_io_fake fake = {.seed = seed, .short_percent = 15 * seed, .align = align, .delay_max = seed};
        variation  v = usual();
        v.fake = &fake;
        v.smallest = true;
        v.extra = (uint64_t)seed * 700001;
        v.pins_off = seed == 1;
        v.prefetch_off = seed == 2;
        v.threads = 1 + seed % 3;
        v.lanes = 1 + seed % 2;
        v.together = v.encode_between = seed % 2 == 1;
        compare(s, &v, want);
    }
    forced = 0;
}

/* Packed by such reads, then run. */
static void check_pack(const subject *checkpoint, const answers *want, const temp_dir *dir, uint32_t align,
                       nw_compress compress)
{
    nw_io_fake      fake = {.seed = align, .short_percent = 20, .align = align, .delay_max = 2};
    nw_hooks        hooks = {.io = &fake};
    temp_path       packed = temp_dir_path(dir, "packed");
    nw_pack_options o = {.dir = packed.text, .compress = compress, .threads = 2};
    nw_pack_result  r;
    nw_error        err = {0};
    char            name[128];
    forced = align;
    if (model_pack(checkpoint->dir, &o, &hooks, &r, &err) != NW_OK) {
        printf("FAILED %s: %s\n", checkpoint->name, err.msg);
        failures++;
        return;
    }
    subject s = *checkpoint;
    snprintf(name, sizeof name, "%s, pack of form %d", checkpoint->name, (int)compress);
    s.name = name;
    snprintf(s.dir, sizeof s.dir, "%s", packed.text);
    check(&s, want, align);
    temp_dir_empty(dir->path);
}

int main(void)
{
    static const char *const goldens[] = {"flan-bf16-shards", "odd-sizes", "numbers-t5"};
    static const uint32_t    aligns[] = {16384, 65536};
    static const size_t      lengths[] = {7, 33, 1};
    temp_dir                 models = temp_dir_make(), packs = temp_dir_make();
    temp_path                many = temp_dir_path(&models, "many");
    many_tiles_write(many.text, 1, 5);
    for (size_t i = 0; i <= sizeof goldens / sizeof *goldens; i++) {
        subject   s = i < sizeof goldens / sizeof *goldens
                          ? subject_golden(goldens[i])
                          : subject_make("many tiles", many.text, lengths, 3, MANY_TILES_VOCAB, 3);
        variation reference = usual();
        answers   want;
        forced = aligns[0];
        if (!reads_directly(s.dir)) {
            printf("skipped: %s is not read directly here\n", s.dir);
            return 77;
        }
        forced = 0;
        if (!run(&s, &reference, &want))
            break;
        for (size_t a = 0; a < sizeof aligns / sizeof *aligns; a++) {
            check(&s, &want, aligns[a]);
            check_pack(&s, &want, &packs, aligns[a], a == 0 ? NW_COMPRESS_SLIM : NW_COMPRESS_PACKED);
        }
    }
    temp_dir_remove(&models);
    temp_dir_remove(&packs);
    printf("%u runs, %u failed\n", runs, failures);
    return failures == 0 ? 0 : 1;
}
