/* Byte planes, Huffman-coded where that makes them smaller.
 *
 * The planes of a long strip are cut into sections of 128 KiB together: what a thread needs beside the strip stays in
 * its cache whatever the type, and zstd decodes planes of up to 64 KiB without moving them about. Shorter sections
 * would pay for their Huffman tables.
 *
 * zstd serves as a Huffman coder: the step of its search is so long that it finds no match, and a literal is all there
 * is. Level 3 on the same weights gives 0.78 of bf16 at a third of the speed (benchmarks/bench_packed.c); this, 0.66.
 * What is read back is not trusted: of a frame only the plain kind of known size is taken, so that zstd needs no window
 * and no memory but its context. Frames as we write them are decoded by huffman.c, twice as fast; zstd takes all
 * others, and has the word on what is wrong.
 */
#define ZSTD_STATIC_LINKING_ONLY /* contexts in memory of ours; literals that are always Huffman-coded */
#include "loader/packed.h"

#include "base/bytes.h"
#include "huffman.h"

#include <string.h>
#include <zstd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define ALIGN ((size_t)64)
#define HEADER_BYTES ((size_t)4)
#define PLANES_MAX 4
#define PLANES_BYTES ((size_t)131072) /* of one section, all planes together */
#define WINDOW_LOG 16                 /* the longest plane of a section: half of them */
#define SIZE_BYTES ((size_t)4)        /* before each section, the size of each plane */

/* As a strip's first byte has them; 0 is none, so that a hole in a file is no strip. */
typedef enum {
    KIND_16 = 1,   /* elements of 16 bits, two planes */
    KIND_HIGH = 2, /* f32 whose low 16 bits are all zero: the high halves as KIND_16 */
    KIND_32 = 3,   /* f32, four planes */
} kind;

struct nw_packed {
    ZSTD_CCtx     *encoder; /* one of the two */
    ZSTD_DCtx     *decoder;
    nw_huffman    *huffman; /* with the decoder */
    unsigned char *planes;  /* PLANES_BYTES */
};

static size_t plane_count(kind k)
{
    return k == KIND_32 ? 4 : 2;
}

static size_t section_elements(kind k)
{
    return PLANES_BYTES / plane_count(k);
}

/* -- elements to planes and back; plane 0 is the highest byte: the exponent -- */

static void split_16(const unsigned char *src, size_t n, size_t step, unsigned char *high, unsigned char *low)
{
    size_t i = 0;
#if defined(__SSE2__)
    for (; step == 2 && i + 16 <= n; i += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i + 16));
        __m128i bytes = _mm_set1_epi16(0xff);
        a = _mm_or_si128(_mm_slli_epi16(a, 1), _mm_srli_epi16(a, 15));
        b = _mm_or_si128(_mm_slli_epi16(b, 1), _mm_srli_epi16(b, 15));
        _mm_storeu_si128((__m128i *)(void *)(high + i), _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
        _mm_storeu_si128((__m128i *)(void *)(low + i),
                         _mm_packus_epi16(_mm_and_si128(a, bytes), _mm_and_si128(b, bytes)));
    }
#endif
    for (; i < n; i++) {
        unsigned x = src[step * i] | (unsigned)src[step * i + 1] << 8;
        x = x << 1 | x >> 15;
        high[i] = (unsigned char)(x >> 8);
        low[i] = (unsigned char)x;
    }
}

static void split_32(const unsigned char *src, size_t n, unsigned char *const planes[PLANES_MAX])
{
    size_t i = 0;
#if defined(__SSE2__)
    for (; i + 16 <= n; i += 16) {
        const __m128i *in = (const __m128i *)(const void *)(src + 4 * i);
        __m128i        x[4];
        for (int k = 0; k < 4; k++) {
            x[k] = _mm_loadu_si128(in + k);
            x[k] = _mm_or_si128(_mm_slli_epi32(x[k], 1), _mm_srli_epi32(x[k], 31));
        }
        for (int k = 3; k >= 0; k--) { /* the lowest byte of each, then the next */
            __m128i low = _mm_set1_epi32(0xff);
            __m128i a = _mm_packs_epi32(_mm_and_si128(x[0], low), _mm_and_si128(x[1], low));
            __m128i b = _mm_packs_epi32(_mm_and_si128(x[2], low), _mm_and_si128(x[3], low));
            _mm_storeu_si128((__m128i *)(void *)(planes[k] + i), _mm_packus_epi16(a, b));
            for (int j = 0; j < 4; j++)
                x[j] = _mm_srli_epi32(x[j], 8);
        }
    }
#endif
    for (; i < n; i++) {
        uint32_t x = nw_get_u32(src + 4 * i);
        x = x << 1 | x >> 31;
        planes[0][i] = (unsigned char)(x >> 24);
        planes[1][i] = (unsigned char)(x >> 16);
        planes[2][i] = (unsigned char)(x >> 8);
        planes[3][i] = (unsigned char)x;
    }
}

static void join_16(const unsigned char *high, const unsigned char *low, size_t n, unsigned char *dst)
{
    size_t i = 0;
#if defined(__SSE2__)
    for (; i + 16 <= n; i += 16) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(high + i));
        __m128i l = _mm_loadu_si128((const __m128i *)(const void *)(low + i));
        __m128i a = _mm_unpacklo_epi8(l, h), b = _mm_unpackhi_epi8(l, h);
        a = _mm_or_si128(_mm_srli_epi16(a, 1), _mm_slli_epi16(a, 15));
        b = _mm_or_si128(_mm_srli_epi16(b, 1), _mm_slli_epi16(b, 15));
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i), a);
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i + 16), b);
    }
#endif
    for (; i < n; i++) {
        unsigned x = (unsigned)high[i] << 8 | low[i];
        x = x >> 1 | x << 15;
        dst[2 * i] = (unsigned char)x;
        dst[2 * i + 1] = (unsigned char)(x >> 8);
    }
}

/* As join_16, each element in the high half of four bytes. */
static void join_high(const unsigned char *high, const unsigned char *low, size_t n, unsigned char *dst)
{
    size_t i = 0;
#if defined(__SSE2__)
    for (; i + 16 <= n; i += 16) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(high + i));
        __m128i l = _mm_loadu_si128((const __m128i *)(const void *)(low + i));
        __m128i zero = _mm_setzero_si128();
        __m128i a = _mm_unpacklo_epi8(l, h), b = _mm_unpackhi_epi8(l, h);
        a = _mm_or_si128(_mm_srli_epi16(a, 1), _mm_slli_epi16(a, 15));
        b = _mm_or_si128(_mm_srli_epi16(b, 1), _mm_slli_epi16(b, 15));
        __m128i *out = (__m128i *)(void *)(dst + 4 * i);
        _mm_storeu_si128(out, _mm_unpacklo_epi16(zero, a));
        _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(zero, a));
        _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(zero, b));
        _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(zero, b));
    }
#endif
    for (; i < n; i++) {
        unsigned x = (unsigned)high[i] << 8 | low[i];
        x = x >> 1 | x << 15;
        dst[4 * i] = dst[4 * i + 1] = 0;
        dst[4 * i + 2] = (unsigned char)x;
        dst[4 * i + 3] = (unsigned char)(x >> 8);
    }
}

#if defined(__SSE2__)
static __m128i rotate_right_32(__m128i x)
{
    return _mm_or_si128(_mm_srli_epi32(x, 1), _mm_slli_epi32(x, 31));
}
#endif

static void join_32(const unsigned char *const planes[PLANES_MAX], size_t n, unsigned char *dst)
{
    size_t i = 0;
#if defined(__SSE2__)
    for (; i + 16 <= n; i += 16) {
        __m128i p[PLANES_MAX];
        for (size_t k = 0; k < PLANES_MAX; k++)
            p[k] = _mm_loadu_si128((const __m128i *)(const void *)(planes[k] + i));
        __m128i  high_a = _mm_unpacklo_epi8(p[1], p[0]), high_b = _mm_unpackhi_epi8(p[1], p[0]);
        __m128i  low_a = _mm_unpacklo_epi8(p[3], p[2]), low_b = _mm_unpackhi_epi8(p[3], p[2]);
        __m128i *out = (__m128i *)(void *)(dst + 4 * i);
        _mm_storeu_si128(out, rotate_right_32(_mm_unpacklo_epi16(low_a, high_a)));
        _mm_storeu_si128(out + 1, rotate_right_32(_mm_unpackhi_epi16(low_a, high_a)));
        _mm_storeu_si128(out + 2, rotate_right_32(_mm_unpacklo_epi16(low_b, high_b)));
        _mm_storeu_si128(out + 3, rotate_right_32(_mm_unpackhi_epi16(low_b, high_b)));
    }
#endif
    for (; i < n; i++) {
        uint32_t x =
            (uint32_t)planes[0][i] << 24 | (uint32_t)planes[1][i] << 16 | (uint32_t)planes[2][i] << 8 | planes[3][i];
        x = x >> 1 | x << 31;
        nw_put_u32(dst + 4 * i, x);
    }
}

/* -- contexts -- */

/* Literals only: see above. */
static const ZSTD_compressionParameters parameters = {
    .windowLog = WINDOW_LOG,
    .chainLog = ZSTD_CHAINLOG_MIN,
    .hashLog = ZSTD_HASHLOG_MIN,
    .searchLog = ZSTD_SEARCHLOG_MIN,
    .minMatch = 7,
    .targetLength = ZSTD_TARGETLENGTH_MAX, /* the step of the search: out of the block at once */
    .strategy = ZSTD_fast,
};

static ZSTD_CCtx *encoder_init(void *memory, size_t bytes)
{
    const struct {
        ZSTD_cParameter parameter;
        int             value;
    } all[] = {
        {ZSTD_c_windowLog, (int)parameters.windowLog},
        {ZSTD_c_chainLog, (int)parameters.chainLog},
        {ZSTD_c_hashLog, (int)parameters.hashLog},
        {ZSTD_c_searchLog, (int)parameters.searchLog},
        {ZSTD_c_minMatch, (int)parameters.minMatch},
        {ZSTD_c_targetLength, (int)parameters.targetLength},
        {ZSTD_c_strategy, (int)parameters.strategy},
        {ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman},
        {ZSTD_c_contentSizeFlag, 1},
        {ZSTD_c_checksumFlag, 0},
    };
    ZSTD_CCtx *encoder = ZSTD_initStaticCCtx(memory, bytes);
    NW_CHECK(encoder != NULL);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        NW_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(encoder, all[i].parameter, all[i].value)));
    return encoder;
}

static size_t context_bytes(nw_packed_use use)
{
    size_t bytes = use == NW_PACKED_ENCODE ? ZSTD_estimateCCtxSize_usingCParams(parameters) : ZSTD_estimateDCtxSize();
    NW_CHECK(!ZSTD_isError(bytes));
    return (size_t)nw_round_up(bytes, ALIGN);
}

static size_t huffman_bytes(nw_packed_use use)
{
    return use == NW_PACKED_ENCODE ? 0 : (size_t)nw_round_up(sizeof(nw_huffman), ALIGN);
}

size_t nw_packed_workspace_bytes(nw_packed_use use)
{
    return (size_t)nw_round_up(sizeof(nw_packed), ALIGN) + PLANES_BYTES + huffman_bytes(use) + context_bytes(use);
}

nw_packed *nw_packed_init(void *workspace, size_t bytes, nw_packed_use use)
{
    NW_CHECK((uintptr_t)workspace % ALIGN == 0);
    NW_CHECK(bytes >= nw_packed_workspace_bytes(use));
    nw_packed     *p = workspace;
    unsigned char *planes = (unsigned char *)workspace + nw_round_up(sizeof *p, ALIGN);
    unsigned char *context = planes + PLANES_BYTES + huffman_bytes(use);
    *p = (nw_packed){.planes = planes};
    if (use == NW_PACKED_ENCODE) {
        p->encoder = encoder_init(context, context_bytes(use));
    } else {
        p->huffman = (nw_huffman *)(void *)(planes + PLANES_BYTES);
        p->decoder = ZSTD_initStaticDCtx(context, context_bytes(use));
        NW_CHECK(p->decoder != NULL);
    }
    return p;
}

/* -- a section -- */

/* True if a plane's bytes are spread so evenly that no code makes it a sixteenth smaller, by a sample. The chance that
 * two bytes are equal gives an entropy (Renyi's) that is never above Shannon's, which bounds any code of single bytes:
 * below 1/200 it is 7.64 bits. So are mantissas, and trying to code them would be time for nothing. */
static bool is_noise(const unsigned char *plane, size_t n)
{
    enum { RUNS = 16, RUN = 256, SAMPLE = RUNS * RUN };
    uint32_t counts[256] = {0};
    uint64_t pairs = 0;
    if (n < 2 * SAMPLE)
        return false;
    for (size_t r = 0; r < RUNS; r++) {
        const unsigned char *p = plane + r * ((n - RUN) / (RUNS - 1));
        for (size_t i = 0; i < RUN; i++)
            counts[p[i]]++;
    }
    for (size_t i = 0; i < 256; i++)
        pairs += (uint64_t)counts[i] * (counts[i] - (counts[i] > 0));
    return pairs < (uint64_t)SAMPLE * (SAMPLE - 1) / 200;
}

/* Writes the planes' sizes and bytes to at most `room` bytes; returns 0 if they do not fit. A plane is coded if that
 * saves a sixteenth of it: less is not worth the time of decoding it. */
static size_t section_encode(nw_packed *p, size_t count, size_t n, size_t stride, unsigned char *dst, size_t room)
{
    size_t at = count * SIZE_BYTES;
    if (at > room)
        return 0;
    for (size_t k = 0; k < count; k++) {
        const unsigned char *plane = p->planes + k * stride;
        size_t               cap = nw_min_size(n - n / 16, room - at);
        size_t               size = n;
        if (!is_noise(plane, n))
            size = ZSTD_compress2(p->encoder, dst + at, cap, plane, n);
        if (size >= n) { /* errors are large numbers */
            if (n > room - at)
                return 0;
            memcpy(dst + at, plane, n);
            size = n;
        }
        nw_put_u32(dst + k * SIZE_BYTES, (uint32_t)size);
        at += size;
    }
    return at;
}

/* One plane out of a frame of exactly `bytes`. */
static const char *plane_decode(nw_packed *p, const unsigned char *src, size_t bytes, unsigned char *dst, size_t n)
{
    if (nw_huffman_decode(p->huffman, src, bytes, dst, n))
        return NULL;
    ZSTD_frameHeader h;
    if (ZSTD_getFrameHeader(&h, src, bytes) != 0 || h.frameType != ZSTD_frame)
        return "a plane is no zstd frame";
    if (h.frameContentSize != n)
        return "a zstd frame is not of the plane's size";
    if (h.windowSize > PLANES_BYTES)
        return "a zstd frame asks for a larger window than a plane";
    if (h.dictID != 0 || h.checksumFlag != 0)
        return "a zstd frame has a dictionary or a checksum";
    if (ZSTD_findFrameCompressedSize(src, bytes) != bytes)
        return "a zstd frame is not of the size that is said";
    if (ZSTD_decompressDCtx(p->decoder, dst, n, src, bytes) != n)
        return "a zstd frame is damaged";
    return NULL;
}

/* Finds or decodes the planes of one section of n elements; *ret_bytes is what it takes of src. */
static const char *section_decode(nw_packed *p, kind k, size_t n, const unsigned char *src, size_t bytes,
                                  const unsigned char *ret_planes[PLANES_MAX], size_t *ret_bytes)
{
    size_t count = plane_count(k), at = count * SIZE_BYTES;
    if (bytes < at)
        return "it ends before its elements do";
    for (size_t i = 0; i < count; i++) {
        size_t size = nw_get_u32(src + i * SIZE_BYTES);
        if (size > bytes - at)
            return "it ends before its elements do";
        if (size > n)
            return "a plane is larger than its elements";
        ret_planes[i] = src + at;
        if (size < n) {
            unsigned char *out = p->planes + i * section_elements(k);
            const char    *why = plane_decode(p, src + at, size, out, n);
            if (why != NULL)
                return why;
            ret_planes[i] = out;
        }
        at += size;
    }
    *ret_bytes = at;
    return NULL;
}

/* -- a strip -- */

static bool low_halves_are_zero(const unsigned char *src, size_t elements)
{
    unsigned any = 0;
    for (size_t i = 0; i < elements && any == 0;) {
        for (size_t end = nw_min_size(elements, i + 4096); i < end; i++)
            any |= src[4 * i] | (unsigned)src[4 * i + 1];
    }
    return any == 0;
}

size_t nw_packed_encode(nw_packed *packed, nw_dtype dtype, const void *src, size_t elements, void *dst)
{
    nw_packed           *p = packed;
    const unsigned char *from = src;
    unsigned char       *to = dst;
    size_t               element = nw_dtype_bytes(dtype), room = elements * element, at = HEADER_BYTES;
    NW_CHECK(p->encoder != NULL);
    NW_CHECK(elements > 0);
    if (elements > NW_PACKED_ELEMENTS_MAX || room <= HEADER_BYTES)
        return 0;
    kind   k = element == 2 ? KIND_16 : low_halves_are_zero(from, elements) ? KIND_HIGH : KIND_32;
    size_t stride = section_elements(k);
    nw_put_u32(to, k);
    for (size_t done = 0, n; done < elements; done += n) {
        n = nw_min_size(elements - done, stride);
        unsigned char *planes[PLANES_MAX];
        for (size_t i = 0; i < plane_count(k); i++)
            planes[i] = p->planes + i * stride;
        const unsigned char *part = from + done * element;
        if (k == KIND_32)
            split_32(part, n, planes);
        else
            split_16(part + (element - 2), n, element, planes[0], planes[1]);
        size_t bytes = section_encode(p, plane_count(k), n, stride, to + at, room - at);
        if (bytes == 0)
            return 0;
        at += bytes;
    }
    return at < room ? at : 0;
}

const char *nw_packed_decode(nw_packed *packed, nw_dtype dtype, const void *src, size_t bytes, void *dst,
                             size_t elements)
{
    nw_packed           *p = packed;
    const unsigned char *from = src;
    size_t               element = nw_dtype_bytes(dtype), at = HEADER_BYTES;
    NW_CHECK(p->decoder != NULL);
    NW_CHECK(elements > 0 && elements <= NW_PACKED_ELEMENTS_MAX);
    if (bytes < HEADER_BYTES)
        return "it ends before its elements do";
    size_t k = nw_get_u32(from);
    if (element == 2 ? k != KIND_16 : k != KIND_HIGH && k != KIND_32)
        return "it is not packed as its type is";
    for (size_t done = 0, n, used = 0; done < elements; done += n, at += used) {
        n = nw_min_size(elements - done, section_elements((kind)k));
        const unsigned char *planes[PLANES_MAX];
        const char          *why = section_decode(p, (kind)k, n, from + at, bytes - at, planes, &used);
        if (why != NULL)
            return why;
        unsigned char *to = (unsigned char *)dst + done * element;
        if (k == KIND_16)
            join_16(planes[0], planes[1], n, to);
        else if (k == KIND_HIGH)
            join_high(planes[0], planes[1], n, to);
        else
            join_32(planes, n, to);
    }
    return at == bytes ? NULL : "it goes on behind its elements";
}
