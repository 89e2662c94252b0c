/* Reading a file's headers a chunk at a time.
 *
 * One chunk is one aligned read, past the page cache like the weights, and is kept until something outside it is asked
 * for.
 */
#include "source.h"

#include <string.h>

nw_code nw_chunk_open(nw_chunk *c, const nw_source *source, size_t bytes, nw_error *err)
{
    bytes = nw_max_size(bytes, source->file->align);
    NW_CHECK((bytes & (bytes - 1)) == 0);
    *c = (nw_chunk){.source = source, .cap = bytes, .buf = nw_memory_map(source->mem, NW_TAG_INDEX, bytes, false)};
    return c->buf != NULL ? NW_OK : nw_memory_fail(source->mem, err, bytes, source->path);
}

void nw_chunk_close(nw_chunk *c)
{
    if (c->buf != NULL)
        nw_memory_unmap(c->source->mem, NW_TAG_INDEX, c->buf, c->cap);
    c->buf = NULL;
}

nw_code nw_chunk_fetch(nw_chunk *c, uint64_t pos, const unsigned char **ret_bytes, size_t *ret_len, nw_error *err)
{
    const nw_file *file = c->source->file;
    NW_CHECK(pos < file->size);
    NW_CHECK(file->align > 0 && file->align <= c->cap);
    if (pos < c->offset || pos - c->offset >= c->bytes) {
        uint64_t  start = nw_round_down(pos, file->align);
        nw_extent extent = nw_file_extent(file, start, nw_min_u64(c->cap, file->size - start));
        NW_CHECK(extent.bytes <= c->cap && extent.skip == 0);
        nw_io_op op = {.kind = NW_IO_READ,
                       .fd = file->fd,
                       .offset = extent.offset,
                       .buf = c->buf,
                       .bytes = extent.bytes,
                       .bytes_needed = extent.bytes_needed};
        c->bytes = 0;
        nw_code rc = nw_io_run(c->source->io, &op, c->source->path, err);
        if (rc != NW_OK)
            return rc;
        nw_file_drop(file, extent.offset, extent.bytes);
        if (c->source->read_bytes != NULL)
            *c->source->read_bytes += extent.bytes_counted;
        c->offset = extent.offset;
        c->bytes = extent.bytes_needed;
    }
    *ret_bytes = c->buf + (pos - c->offset);
    *ret_len = c->bytes - (size_t)(pos - c->offset);
    return NW_OK;
}

nw_code nw_chunk_copy(nw_chunk *c, uint64_t pos, void *ret, size_t len, nw_error *err)
{
    unsigned char *to = ret;
    while (len > 0) {
        const unsigned char *from = NULL;
        size_t               have = 0;
        nw_code              rc = nw_chunk_fetch(c, pos, &from, &have, err);
        if (rc != NW_OK)
            return rc;
        have = nw_min_size(have, len);
        memcpy(to, from, have);
        to += have;
        pos += have;
        len -= have;
    }
    return NW_OK;
}

nw_code nw_chunk_scan(nw_chunk *c, const char *label, uint64_t offset, uint64_t bytes, nw_json_fn fn, void *user,
                      nw_error *err)
{
    /* yajl looks at an unfinished string again with each chunk, so a header full of long ones would take long. */
    static const nw_json_limits limits = {.string_len_max = (size_t)256 << 10};
    nw_json                    *json = NULL;
    nw_code                     rc = nw_json_open(c->source->mem, label, &limits, fn, user, &json, err);
    for (uint64_t done = 0; done < bytes && rc == NW_OK;) {
        const unsigned char *p = NULL;
        size_t               len = 0;
        rc = nw_chunk_fetch(c, offset + done, &p, &len, err);
        if (rc != NW_OK)
            break;
        len = (size_t)nw_min_u64(len, bytes - done);
        rc = nw_json_feed(json, p, len, err);
        done += len;
    }
    if (rc == NW_OK)
        rc = nw_json_finish(json, err);
    nw_json_close(json);
    return rc;
}

nw_code nw_source_scan(const nw_source *source, const char *label, uint64_t offset, uint64_t bytes, nw_json_fn fn,
                       void *user, nw_error *err)
{
    NW_CHECK(offset <= source->file->size && bytes <= source->file->size - offset);
    nw_chunk c;
    nw_code  rc = nw_chunk_open(&c, source, NW_HEADER_CHUNK, err);
    if (rc == NW_OK)
        rc = nw_chunk_scan(&c, label, offset, bytes, fn, user, err);
    nw_chunk_close(&c);
    return rc;
}

uint64_t nw_le(const unsigned char *p, size_t bytes)
{
    NW_CHECK(bytes <= 8);
    uint64_t value = 0;
    for (size_t i = bytes; i > 0; i--)
        value = value << 8 | p[i - 1];
    return value;
}
