/* One buffer between what is drawn or copied and the writer. A piece is filled in place, and the buffer is handed on
 * when the next piece does not fit, so small vectors and long rows cost the same per byte. */
#include "maker.h"

#include "base/size.h"
#include "loader/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PROGRESS_NS UINT64_C(200000000)

/* Large enough for the tokenizer.json of a vocabulary of 256,000 pieces. */
#define CARRY_BYTES_MAX ((size_t)128 << 20)

static uint64_t now_ns(void)
{
    struct timespec now;
    NW_CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

double nw_maker_seconds(const nw_maker *maker)
{
    return (double)(now_ns() - maker->start_ns) * 1e-9;
}

nw_code nw_maker_open(nw_memory *mem, const char *dir, uint64_t shard_bytes_max, uint64_t total_bytes,
                      nw_maker *ret_maker, nw_error *err)
{
    *ret_maker = (nw_maker){.mem = mem, .total_bytes = total_bytes, .start_ns = now_ns(), .terminal = isatty(2) == 1};
    nw_code rc = nw_normal_open(mem, &ret_maker->normal, err);
    if (rc != NW_OK)
        return rc;
    ret_maker->buffer = nw_memory_alloc(mem, NW_TAG_IO, NW_MAKER_PIECE_BYTES, 1);
    if (ret_maker->buffer == NULL)
        return nw_memory_fail(mem, err, NW_MAKER_PIECE_BYTES, dir);
    return nw_writer_open(mem, dir, shard_bytes_max, &ret_maker->writer, err);
}

static void show_progress(nw_maker *maker)
{
    uint64_t now = now_ns();
    if (!maker->terminal || now - maker->shown_ns < PROGRESS_NS)
        return;
    maker->shown_ns = now;
    char   done[16], total[16];
    double seconds = nw_maker_seconds(maker);
    fprintf(stderr, "\r%3.0f %%  %s of %s  %.2f GB/s   ",
            100.0 * (double)maker->done_bytes / (double)nw_max_u64(maker->total_bytes, 1),
            nw_size_format(maker->done_bytes, false, done), nw_size_format(maker->total_bytes, false, total),
            seconds > 0 ? (double)maker->done_bytes * 1e-9 / seconds : 0.0);
}

static nw_code flush_buffer(nw_maker *maker, nw_error *err)
{
    size_t used = maker->used;
    maker->used = 0;
    if (used == 0)
        return NW_OK;
    maker->done_bytes += used;
    show_progress(maker);
    return nw_writer_data(maker->writer, maker->buffer, used, err);
}

nw_code nw_maker_piece(nw_maker *maker, size_t bytes, unsigned char **ret, nw_error *err)
{
    NW_CHECK(bytes <= NW_MAKER_PIECE_BYTES);
    if (bytes > NW_MAKER_PIECE_BYTES - maker->used) {
        nw_code rc = flush_buffer(maker, err);
        if (rc != NW_OK)
            return rc;
    }
    *ret = maker->buffer + maker->used;
    maker->used += bytes;
    return NW_OK;
}

nw_code nw_maker_zeros(nw_maker *maker, nw_dtype dtype, uint64_t count, nw_error *err)
{
    uint64_t bytes = count * nw_dtype_bytes(dtype);
    while (bytes > 0) {
        unsigned char *piece;
        size_t         len = (size_t)nw_min_u64(bytes, NW_MAKER_PIECE_BYTES);
        nw_code        rc = nw_maker_piece(maker, len, &piece, err);
        if (rc != NW_OK)
            return rc;
        memset(piece, 0, len);
        bytes -= len;
    }
    return NW_OK;
}

nw_code nw_maker_draw(nw_maker *maker, nw_dtype dtype, uint64_t key, uint64_t first, uint64_t count, nw_error *err)
{
    size_t size = nw_dtype_bytes(dtype);
    while (count > 0) {
        unsigned char *piece;
        size_t         some = (size_t)nw_min_u64(count, NW_MAKER_PIECE_BYTES / size);
        nw_code        rc = nw_maker_piece(maker, some * size, &piece, err);
        if (rc != NW_OK)
            return rc;
        nw_normal_fill(maker->normal, key, first, some, piece);
        first += some;
        count -= some;
    }
    return NW_OK;
}

nw_code nw_maker_carry(nw_maker *maker, nw_io *io, const char *dir, bool generation, nw_error *err)
{
    static const char *const names[] = {"spiece.model",          "tokenizer.model",         "tokenizer.json",
                                        "added_tokens.json",     "special_tokens_map.json", "tokenizer_config.json",
                                        "generation_config.json"};
    size_t                   count = sizeof names / sizeof names[0] - (generation ? 0 : 1);
    for (size_t i = 0; i < count; i++) {
        char path[4096];
        int  len = snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (len < 0 || (size_t)len >= sizeof path)
            return nw_fail(err, NW_E_ARG, 0, "'%s': path too long", dir);
        if (access(path, F_OK) != 0)
            continue;
        char   *data;
        size_t  bytes;
        nw_code rc =
            nw_file_read_whole(maker->mem, NW_TAG_TOKENIZER, io, path, CARRY_BYTES_MAX, &data, &bytes, NULL, err);
        if (rc != NW_OK)
            return rc;
        rc = nw_writer_file(maker->writer, names[i], data, bytes, err);
        nw_memory_free(maker->mem, NW_TAG_TOKENIZER, data, bytes + 1, 1);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

nw_code nw_maker_finish(nw_maker *maker, nw_error *err)
{
    nw_code rc = flush_buffer(maker, err);
    if (rc == NW_OK)
        rc = nw_writer_finish(maker->writer, err);
    if (maker->terminal)
        fprintf(stderr, "\r%48s\r", "");
    return rc;
}

void nw_maker_close(nw_maker *maker)
{
    nw_writer_close(maker->writer);
    nw_normal_close(maker->normal);
    nw_memory_free(maker->mem, NW_TAG_IO, maker->buffer, NW_MAKER_PIECE_BYTES, 1);
    *maker = (nw_maker){0};
}

bool nw_maker_number(const char *text, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        if (!nw_mul_u64(value, 10, &value) || !nw_add_u64(value, (uint64_t)(*text - '0'), &value) || value > max)
            return false;
    }
    *ret = value;
    return true;
}
