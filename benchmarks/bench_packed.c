/* bench_packed [MIB]: how fast the packed form is made and restored, on one core, with zstd level 3 on whole tiles
 * beside.
 *
 * Normal weights, in tiles of 8 strips of 128 Ki elements, from memory. CSV; rates are of restored bytes, by the time
 * of this thread's CPU (a shared machine's other work does not count), the best and the median of the rounds. */
#include "bench.h"
#include "loader/packed.h"
#include "normal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define STRIP ((size_t)NW_STRIP_ELEMENTS_MAX)
#define TILE_STRIPS ((size_t)NW_TILE_STRIPS_MAX)
enum { ROUNDS = 9 };

typedef struct {
    size_t         strips, strip_bytes;
    nw_dtype       dtype;
    unsigned char *plain, *stored, *restored;
    size_t        *sizes; /* of each strip, or of each tile */
} bench;

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL)
        exit(1);
    memset(p, 1, bytes);
    return p;
}

static void fill(const bench *b, bool coarse)
{
    nw_memory  mem;
    nw_normal *normal = NULL;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    if (nw_normal_open(&mem, &normal, NULL) != NW_OK)
        exit(1);
    nw_normal_set(normal, b->dtype, coarse, 0, 0.04);
    nw_normal_fill(normal, nw_normal_key(1, "bench"), 0, b->strips * STRIP, b->plain);
    nw_normal_close(normal);
}

/* One round of all strips (coder "packed") or tiles ("zstd3"); returns the bytes that are stored. */
static size_t run(const bench *b, bool packed, bool decode, nw_packed *codec, ZSTD_CCtx *cctx, ZSTD_DCtx *dctx)
{
    size_t unit = packed ? b->strip_bytes : TILE_STRIPS * b->strip_bytes, stored = 0;
    for (size_t i = 0; i < b->strips * b->strip_bytes / unit; i++) {
        unsigned char *plain = b->plain + i * unit, *at = b->stored + i * ZSTD_compressBound(unit);
        /* As a kernel takes it: into the same place each time, which stays in the cache. */
        if (packed && !decode)
            b->sizes[i] = nw_packed_encode(codec, b->dtype, plain, STRIP, at);
        else if (packed && nw_packed_decode(codec, b->dtype, at, b->sizes[i], b->restored, STRIP) != NULL)
            exit(1);
        else if (!packed && !decode)
            b->sizes[i] = ZSTD_compressCCtx(cctx, at, ZSTD_compressBound(unit), plain, unit, 3);
        else if (!packed && ZSTD_decompressDCtx(dctx, b->restored, unit, at, b->sizes[i]) != unit)
            exit(1);
        stored += b->sizes[i];
        if (decode && memcmp(b->restored, plain, 64) != 0)
            exit(1);
    }
    return stored;
}

static void measure(const bench *b, const char *what, bool packed)
{
    size_t     encode_bytes = nw_packed_workspace_bytes(NW_PACKED_ENCODE);
    size_t     decode_bytes = nw_packed_workspace_bytes(NW_PACKED_DECODE);
    void      *encode_place = take(encode_bytes), *decode_place = take(decode_bytes);
    nw_packed *encoder = nw_packed_init(encode_place, encode_bytes, NW_PACKED_ENCODE);
    nw_packed *decoder = nw_packed_init(decode_place, decode_bytes, NW_PACKED_DECODE);
    ZSTD_CCtx *cctx = ZSTD_createCCtx();
    ZSTD_DCtx *dctx = ZSTD_createDCtx();
    double     total = (double)(b->strips * b->strip_bytes);
    for (int decode = 0; decode < 2; decode++) {
        double times[ROUNDS];
        size_t stored = 0;
        for (int r = 0; r < ROUNDS; r++) {
            double t = nw_bench_thread_seconds();
            stored = run(b, packed, decode, decode ? decoder : encoder, cctx, dctx);
            times[r] = nw_bench_thread_seconds() - t;
        }
        double middle = nw_bench_median(times, ROUNDS);
        printf("%s,%s,%s,%.4f,%.2f,%.2f\n", packed ? "packed" : "zstd-3", what, decode ? "decode" : "encode",
               (double)stored / total, total / times[0] * 1e-9, total / middle * 1e-9);
        fflush(stdout);
    }
    ZSTD_freeCCtx(cctx);
    ZSTD_freeDCtx(dctx);
    free(encode_place);
    free(decode_place);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        nw_dtype    dtype;
        bool        coarse;
    } types[] = {
        {"bf16", NW_BF16, false}, {"f16", NW_F16, false}, {"f32", NW_F32, false}, {"bf16-in-f32", NW_F32, true}};
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    printf("coder,type,what,ratio,gb_per_s_best,gb_per_s_median\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bench b = {.dtype = types[i].dtype, .strip_bytes = STRIP * nw_dtype_bytes(types[i].dtype)};
        b.strips = ((mib << 20) / b.strip_bytes + TILE_STRIPS) / TILE_STRIPS * TILE_STRIPS;
        b.plain = take(b.strips * b.strip_bytes);
        b.stored = take(b.strips * ZSTD_compressBound(b.strip_bytes));
        b.restored = take(TILE_STRIPS * b.strip_bytes);
        b.sizes = take(b.strips * sizeof *b.sizes);
        fill(&b, types[i].coarse);
        measure(&b, types[i].name, true);
        measure(&b, types[i].name, false);
        free(b.plain);
        free(b.stored);
        free(b.restored);
        free(b.sizes);
    }
    return 0;
}
