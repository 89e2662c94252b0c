/* Huffman-coded literals of a plain zstd frame. "RFC" is RFC 8878.
 *
 * The time of a decoder is that of its chain: from the next bits to an entry, from the entry to how many bits it takes,
 * from there to the next bits. Weights' exponents have codes of 2 or 3 bits, so one step of the chain should give
 * several symbols: an entry has up to six of them, as many whole codes as fit into 11 bits. Four streams are decoded in
 * turn, so that four chains run at once, and the bits are refilled after as many steps as 64 bits surely hold, beside
 * the last of these: what a refill waits for is known before that step's entry is there.
 *
 * An entry, from its lowest byte: bits taken, symbols, and the symbols themselves in order. It is stored whole, beyond
 * the symbols it has; what follows is written over.
 *
 * Bounds: the fast loop runs for as many rounds as no stream can leave its part of the source or of the output in, and
 * what is left is decoded with a look at each step.
 */
#include "huffman.h"

#include "base/bytes.h"
#include "base/size.h"

#include <assert.h>
#include <string.h>

enum {
    BITS = NW_HUFFMAN_BITS,
    LOOKUP = 1 << (BITS - 1), /* where the entries of all 11 bits begin; before them, those of fewer bits */
    STREAMS = 4,
    SYMBOLS_MAX = 6,                                         /* of an entry */
    STORE_BYTES = 8,                                         /* what an entry writes */
    STEPS = 4,                                               /* between refills */
    ROUND_SYMBOLS = (STEPS - 1) * SYMBOLS_MAX + STORE_BYTES, /* what a round writes of a stream at most */
    ROUND_BYTES = (7 + STEPS * BITS) / 8,                    /* what it goes back in the source at most */
    JUMP_BYTES = 6,                                          /* sizes of three streams (RFC 3.1.1.3.1.6) */
    CONTENT_MAX = 131072,                                    /* of a block (RFC 3.1.1.2.4) */
    WEIGHTS_MAX = 255,                                       /* the last symbol's is not written */
    FSE_LOG_MAX = 6,                                         /* of the weights' own code (RFC 4.2.1.2) */
    FSE_SYMBOLS = BITS + 1,                                  /* weights are 0 to 11 */
};
static_assert(STEPS * SYMBOLS_MAX <= ROUND_SYMBOLS, "what is stored last reaches furthest");
/* Up to 7 bits of a byte begun, one step made over the refill, the steps up to the next, and behind them the mark. */
static_assert(7 + (1 + STEPS) * BITS < 64, "the mark is not seen by a lookup");

/* The symbols of an entry. Said so that one store is made of it: of nw_put_u64 with the shift, compilers make eight. */
static inline void symbols_store(unsigned char *to, uint64_t entry)
{
    uint64_t x = entry >> 16 | entry << 48; /* one instruction; the last two bytes count for nothing */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    memcpy(to, &x, sizeof x);
}

static unsigned highest_bit(uint32_t x) /* not 0 */
{
    return 31u - (unsigned)__builtin_clz(x);
}

/* -- weights: how long each symbol's code is (RFC 4.2.1) -- */

typedef struct {
    unsigned char symbol, bits;
    uint16_t      base; /* the next state: base + bits that are read */
} fse_entry;

/* n bits, at most 15, of a forward stream of `bytes`, zeros behind it. */
static uint32_t forward_bits(const unsigned char *src, size_t bytes, size_t at, unsigned n)
{
    uint32_t x = 0;
    for (size_t i = at / 8, k = 0; k < 3 && i < bytes; i++, k++)
        x |= (uint32_t)src[i] << 8 * k;
    return x >> at % 8 & ((1u << n) - 1);
}

/* The probabilities of the weights (RFC 4.1.1), in 1 / 2^*ret_log; -1 is "less than 1". Returns the bytes they take, 0
 * if they are not right. */
static size_t fse_probabilities(const unsigned char *src, size_t bytes, int16_t probability[FSE_SYMBOLS],
                                unsigned *ret_log)
{
    unsigned log = forward_bits(src, bytes, 0, 4) + 5;
    if (log > FSE_LOG_MAX)
        return 0;
    int    left = 1 << log;
    size_t at = 4, symbol = 0;
    memset(probability, 0, FSE_SYMBOLS * sizeof *probability);
    while (left > 0) {
        if (symbol == FSE_SYMBOLS)
            return 0;
        /* A value is of 0 to left + 1; the small ones of these take a bit less. */
        unsigned bits = highest_bit((uint32_t)left + 1) + 1;
        uint32_t few = (1u << bits) - 1 - ((uint32_t)left + 1), half = 1u << (bits - 1);
        uint32_t value = forward_bits(src, bytes, at, bits);
        if ((value & (half - 1)) < few) {
            value &= half - 1;
            bits--;
        } else if (value >= half) {
            value -= few;
        }
        at += bits;
        int p = (int)value - 1;
        left -= p < 0 ? 1 : p;
        probability[symbol++] = (int16_t)p;
        for (uint32_t zeros = p == 0 ? 3 : 0; zeros == 3;) {
            zeros = forward_bits(src, bytes, at, 2);
            at += 2;
            symbol += zeros;
            if (symbol > FSE_SYMBOLS)
                return 0;
        }
    }
    *ret_log = log;
    size_t taken = (at + 7) / 8;
    return left == 0 && taken <= bytes ? taken : 0;
}

/* The states of an FSE code (RFC 4.1.1, "From Normalized Distribution to Decoding Tables"). */
static bool fse_table(const int16_t probability[FSE_SYMBOLS], unsigned log, fse_entry table[1 << FSE_LOG_MAX])
{
    uint32_t size = 1u << log, step = (size >> 1) + (size >> 3) + 3, at = 0, high = size;
    uint16_t next[FSE_SYMBOLS];
    for (size_t s = 0; s < FSE_SYMBOLS; s++) {
        next[s] = (uint16_t)(probability[s] < 0 ? 1 : probability[s]);
        if (probability[s] < 0)
            table[--high].symbol = (unsigned char)s;
    }
    for (size_t s = 0; s < FSE_SYMBOLS; s++) {
        for (int i = 0; i < probability[s]; i++) {
            table[at].symbol = (unsigned char)s;
            do
                at = (at + step) & (size - 1);
            while (at >= high); /* which is not 0 where there is something to place */
        }
    }
    for (uint32_t i = 0; i < size; i++) {
        uint32_t x = next[table[i].symbol]++;
        unsigned bits = log - highest_bit(x);
        table[i].bits = (unsigned char)bits;
        table[i].base = (uint16_t)((x << bits) - size);
    }
    return at == 0;
}

/* The weights in an FSE code of two states in turn (RFC 4.2.1.2). Reads up to 7 bytes behind src. Returns how many, 0
 * if they are not right. */
static size_t weights_fse(const unsigned char *src, size_t bytes, unsigned char weights[256])
{
    int16_t   probability[FSE_SYMBOLS];
    fse_entry table[1 << FSE_LOG_MAX];
    unsigned  log = 0;
    size_t    head = fse_probabilities(src, bytes, probability, &log), count = 0;
    if (head == 0 || head == bytes || src[bytes - 1] == 0 || !fse_table(probability, log, table))
        return 0;
    src += head;
    /* Bits are read from the end; the highest one that is set marks it. */
    int at = (int)(8 * (bytes - head - 1) + highest_bit(src[bytes - head - 1])) - 2 * (int)log;
    if (at < 0)
        return 0;
    uint64_t both = nw_get_u64(src + at / 8) >> at % 8;
    uint32_t mask = (1u << log) - 1, state = (uint32_t)(both >> log) & mask, other = (uint32_t)both & mask;
    while (count + 2 <= WEIGHTS_MAX) {
        fse_entry e = table[state];
        weights[count++] = e.symbol;
        at -= e.bits;
        if (at < 0) { /* no bits for the next state: the other one is the last */
            weights[count++] = table[other].symbol;
            return count;
        }
        state = other;
        other = e.base + ((uint32_t)(nw_get_u64(src + at / 8) >> at % 8) & ((1u << e.bits) - 1));
    }
    return 0;
}

/* All weights but the last symbol's. *ret_taken is what they take of src, which has 7 bytes behind them. Returns how
 * many, 0 if they are not right. */
static size_t weights_read(const unsigned char *src, size_t bytes, unsigned char weights[256], size_t *ret_taken)
{
    if (bytes < 1)
        return 0;
    size_t head = src[0], count = head < 128 ? 0 : head - 127, taken = 1 + (count == 0 ? head : (count + 1) / 2);
    *ret_taken = taken;
    if (bytes < taken + 7 || taken == 1)
        return 0;
    if (count == 0)
        return weights_fse(src + 1, head, weights);
    for (size_t i = 0; i < count; i++) /* RFC 4.2.1.1 */
        weights[i] = src[1 + i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
    return count;
}

/* -- the table -- */

typedef struct {
    size_t   count; /* symbols that have a code */
    unsigned shortest;
} code;

/* Lengths and order of the codes, from the weights (RFC 4.2.1 and 4.2.1.3): a weight w is worth 2^(w-1), all together
 * are a power of two, of which the last symbol is what is missing. */
static bool code_make(nw_huffman *h, size_t count, code *ret)
{
    uint32_t sum = 0, of_weight[16] = {0};
    for (size_t i = 0; i < count; i++) {
        of_weight[h->weights[i]]++;
        sum += 1u << h->weights[i] >> 1;
    }
    if (sum == 0 || sum >= 1u << BITS)
        return false;
    unsigned longest = highest_bit(sum) + 1;
    uint32_t rest = (1u << longest) - sum;
    if ((rest & (rest - 1)) != 0)
        return false;
    h->weights[count] = (unsigned char)(highest_bit(rest) + 1);
    of_weight[h->weights[count]]++;
    if (of_weight[1] == 0) /* the sum is then one of longer codes than there are */
        return false;
    size_t   at[16] = {0};
    unsigned heaviest = 1;
    for (unsigned w = 1; w < 15; w++) {
        at[w + 1] = at[w] + of_weight[w];
        heaviest = of_weight[w] > 0 ? w : heaviest;
    }
    for (size_t i = 0; i <= count; i++) {
        unsigned w = h->weights[i];
        h->lengths[i] = (unsigned char)(longest + 1 - w);
        if (w > 0)
            h->order[at[w]++] = (unsigned char)i;
    }
    *ret = (code){.count = at[heaviest], .shortest = longest + 1 - heaviest};
    return true;
}

/* An entry with a symbol of so many bits before it: for n entries, a power of two. Written for vectors, which compilers
 * make of what there is. */
static void entries_precede(uint64_t *to, const uint64_t *from, size_t n, unsigned symbol, unsigned bits)
{
    typedef uint64_t vector __attribute__((vector_size(16), aligned(8), may_alias));
    uint64_t         head = 0xffff, first = (uint64_t)symbol << 16 | 1u << 8 | bits;
    if (n == 1) {
        to[0] = (from[0] & ~head) << 8 | ((from[0] & head) + first);
        return;
    }
    for (size_t i = 0; i < n; i += 2) {
        vector e = *(const vector *)(const void *)(from + i);
        *(vector *)(void *)(to + i) = (e & ~head) << 8 | ((e & head) + first);
    }
}

static uint64_t *level_of(nw_huffman *h, unsigned bits)
{
    return h->entries + ((size_t)1 << (bits < BITS ? bits : BITS - 1));
}

/* Level k is what k bits mean, for all 2^k of them: nothing where the first code is longer, else a symbol and what the
 * bits behind it mean, which a lower level has. The shortest codes are the highest numbers. Codes of one bit would give
 * more symbols than there are places: where there are such, only five bits behind the first symbol are looked at. */
static void level_make(nw_huffman *h, const code *c, unsigned k)
{
    unsigned  most = c->shortest == 1 ? SYMBOLS_MAX - 1 : BITS;
    uint64_t *out = level_of(h, k), *to = out + ((size_t)1 << k);
    for (size_t i = c->count; i-- > 0;) {
        unsigned symbol = h->order[i], length = h->lengths[symbol];
        if (length > k)
            break;
        unsigned behind = k - length, known = behind < most ? behind : most;
        to -= (size_t)1 << behind;
        if (behind == known)
            entries_precede(to, level_of(h, behind), (size_t)1 << behind, symbol, length);
        for (size_t j = 0; j < (size_t)1 << behind && behind != known; j++)
            entries_precede(to + j, level_of(h, known) + (j >> (behind - known)), 1, symbol, length);
    }
    memset(out, 0, (size_t)(to - out) * sizeof *out);
}

static void table_make(nw_huffman *h, const code *c)
{
    unsigned most = c->shortest == 1 ? SYMBOLS_MAX - 1 : BITS - c->shortest;
    for (unsigned k = 0; k <= most; k++)
        level_make(h, c, k);
    level_make(h, c, BITS);
}

/* -- streams -- */

/* Read from its end back. The container has the next bits at its top; behind them are bits that are not taken from it
 * any more, of which the lowest that is set is the mark of how many bits have been taken. */
typedef struct {
    const unsigned char *begin, *at; /* at: where the container's bytes are; up to 8 before begin, at the end */
    uint64_t             container;
    unsigned char       *to, *end;
} stream;

/* Begins behind the mark at the stream's end (RFC 4.2.2). There are 8 readable bytes before it. */
static bool stream_begin(stream *s, const unsigned char *begin, size_t bytes)
{
    if (bytes == 0 || begin[bytes - 1] == 0)
        return false;
    s->begin = begin;
    s->at = begin + bytes - 8;
    s->container = (nw_get_u64(s->at) | 1) << (8 - highest_bit(begin[bytes - 1]));
    return true;
}

/* The rest of a stream. True if it ends with its last bit. */
static bool stream_finish(const nw_huffman *h, stream *s)
{
    const uint64_t *entries = h->entries + LOOKUP;
    unsigned        taken = (unsigned)__builtin_ctzll(s->container);
    for (;;) {
        s->at -= taken / 8;
        taken %= 8;
        uint64_t bits = nw_get_u64(s->at) << taken;
        int64_t  left = 8 * (s->at - s->begin) + 64 - taken;
        if (s->to == s->end)
            return left == 0;
        uint64_t e = entries[bits >> (64 - BITS)];
        if (left >= BITS && s->end - s->to >= STORE_BYTES) {
            symbols_store(s->to, e);
            s->to += e >> 8 & 0xff;
            taken += (unsigned)(e & 0xff);
        } else { /* the first symbol of the entry; where bits before the stream are seen, its code shows it */
            unsigned char symbol = (unsigned char)(e >> 16);
            if (h->lengths[symbol] > left)
                return false;
            *s->to++ = symbol;
            taken += h->lengths[symbol];
        }
    }
}

/* How many rounds no stream can leave its source or its output in. */
static size_t rounds_safe(const stream s[STREAMS])
{
    size_t rounds = SIZE_MAX;
    for (size_t i = 0; i < STREAMS; i++) {
        rounds = nw_min_size(rounds, (size_t)(s[i].end - s[i].to) / ROUND_SYMBOLS);
        rounds = nw_min_size(rounds, s[i].at < s[i].begin ? 0 : (size_t)(s[i].at - s[i].begin) / ROUND_BYTES);
    }
    return rounds;
}

#define INLINE static inline __attribute__((always_inline))

/* One lookup: the symbols to *to, and the bits taken. */
INLINE void step(const uint64_t *entries, uint64_t *bits, unsigned char **to)
{
    uint64_t e = entries[*bits >> (64 - BITS)];
    symbols_store(*to, e);
    *to += e >> 8 & 0xff;
    *bits <<= e & 63;
}

/* A lookup, while the bits are refilled from before it: neither waits for the other. */
INLINE void step_and_refill(const uint64_t *entries, uint64_t *bits, unsigned char **to, const unsigned char **at)
{
    uint64_t e = entries[*bits >> (64 - BITS)];
    unsigned taken = (unsigned)__builtin_ctzll(*bits);
    *at -= taken / 8;
    symbols_store(*to, e);
    *to += e >> 8 & 0xff;
    *bits = (nw_get_u64(*at) | 1) << taken % 8 << (e & 63);
}

/* In variables of their own, because registers are what this is about. */
INLINE void streams_run_inline(const uint64_t *entries, stream s[STREAMS])
{
    for (size_t rounds; (rounds = rounds_safe(s)) > 0;) {
        uint64_t             b0 = s[0].container, b1 = s[1].container, b2 = s[2].container, b3 = s[3].container;
        const unsigned char *a0 = s[0].at, *a1 = s[1].at, *a2 = s[2].at, *a3 = s[3].at;
        unsigned char       *t0 = s[0].to, *t1 = s[1].to, *t2 = s[2].to, *t3 = s[3].to;
        for (; rounds > 0; rounds--) {
#pragma GCC unroll 8
            for (int i = 0; i < STEPS - 1; i++) {
                step(entries, &b0, &t0);
                step(entries, &b1, &t1);
                step(entries, &b2, &t2);
                step(entries, &b3, &t3);
            }
            step_and_refill(entries, &b0, &t0, &a0);
            step_and_refill(entries, &b1, &t1, &a1);
            step_and_refill(entries, &b2, &t2, &a2);
            step_and_refill(entries, &b3, &t3, &a3);
        }
        s[0] = (stream){s[0].begin, a0, b0, t0, s[0].end};
        s[1] = (stream){s[1].begin, a1, b1, t1, s[1].end};
        s[2] = (stream){s[2].begin, a2, b2, t2, s[2].end};
        s[3] = (stream){s[3].begin, a3, b3, t3, s[3].end};
    }
}

static void streams_run(const uint64_t *entries, stream s[STREAMS])
{
    streams_run_inline(entries, s);
}

#if defined(__x86_64__)
/* Shifts by a number in any register are one instruction instead of three: a tenth of the time. */
__attribute__((target("bmi,bmi2"))) static void streams_run_bmi2(const uint64_t *entries, stream s[STREAMS])
{
    streams_run_inline(entries, s);
}
#endif

/* Four streams, each of a quarter of n, the last one of what is left, behind the sizes of the first three (RFC
 * 3.1.1.3.1.6). */
static bool streams_decode(const nw_huffman *h, const unsigned char *src, size_t bytes, unsigned char *dst, size_t n)
{
    size_t quarter = (n + 3) / 4, at = JUMP_BYTES;
    stream s[STREAMS];
    if (bytes < JUMP_BYTES || 3 * quarter >= n)
        return false;
    for (size_t i = 0; i < STREAMS; i++) {
        size_t size = i == 3 ? bytes - at : src[2 * i] | (size_t)src[2 * i + 1] << 8;
        if (size > bytes - at || !stream_begin(&s[i], src + at, size))
            return false;
        s[i].to = dst + i * quarter;
        s[i].end = i == 3 ? dst + n : s[i].to + quarter;
        at += size;
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        streams_run_bmi2(h->entries + LOOKUP, s);
    else
#endif
        streams_run(h->entries + LOOKUP, s);
    for (size_t i = 0; i < STREAMS; i++) {
        if (!stream_finish(h, &s[i]))
            return false;
    }
    return true;
}

/* -- a frame -- */

/* The frame's and the block's header (RFC 3.1.1.1, 3.1.1.2): returns what they take, 0 if the frame is not plain. */
static size_t headers_read(const unsigned char *src, size_t bytes, size_t n)
{
    static const unsigned char magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    if (bytes < 5 || memcmp(src, magic, 4) != 0 || (src[4] & 0x3f) != 0x20 || src[4] >> 6 == 3)
        return 0;
    size_t size_bytes = (size_t)1 << (src[4] >> 6), content = 0, at = 5 + size_bytes;
    if (bytes < at + 3)
        return 0;
    for (size_t i = 0; i < size_bytes; i++)
        content |= (size_t)src[5 + i] << 8 * i;
    content += size_bytes == 2 ? 256 : 0;
    uint32_t block = src[at] | (uint32_t)src[at + 1] << 8 | (uint32_t)src[at + 2] << 16;
    at += 3;
    /* the last block, compressed, no larger than the content, which is the window */
    if (content != n || n > CONTENT_MAX || (block & 7) != 5 || block >> 3 != bytes - at || block >> 3 > n)
        return 0;
    return at;
}

bool nw_huffman_decode(nw_huffman *h, const unsigned char *src, size_t bytes, unsigned char *dst, size_t n)
{
    size_t at = headers_read(src, bytes, n);
    /* The last byte is the number of sequences, which is none. */
    if (at == 0 || bytes - at < 5 || src[bytes - 1] != 0)
        return false;
    bytes--;
    /* The literals' header (RFC 3.1.1.3.1.1): type, format, two sizes. Format 0 is a single stream. */
    unsigned format = src[at] >> 2 & 3, size_bits = 6 + 4 * format;
    if ((src[at] & 3) != 2 || format == 0 || bytes - at < 2 + format)
        return false;
    uint64_t head = 0, mask = ((uint64_t)1 << size_bits) - 1;
    for (size_t i = 0; i < 2 + format; i++)
        head |= (uint64_t)src[at + i] << 8 * i;
    at += 2 + format;
    if ((head >> 4 & mask) != n || (head >> (4 + size_bits) & mask) != bytes - at)
        return false;
    size_t taken = 0, count = weights_read(src + at, bytes - at, h->weights, &taken);
    code   c;
    if (count == 0 || !code_make(h, count, &c))
        return false;
    table_make(h, &c);
    at += taken;
    return streams_decode(h, src + at, bytes - at, dst, n);
}
