/* A ring of buffers: reads are submitted in order and given out in order, whatever order they complete in. A piece's
 * buffer is read into again only when the next piece is asked for. */
#include "loader/stream.h"

/* A piece may begin anywhere in a block, and end anywhere in another. */
#define BUFFER_BYTES (NW_STREAM_PIECE + 2 * (size_t)65536)

typedef struct {
    unsigned char *bytes;
    nw_extent      extent;
    bool           done;
    int            os_errno;
} piece;

struct nw_stream {
    nw_memory     *mem;
    nw_io         *io;
    unsigned char *buffers; /* [NW_STREAM_DEPTH, BUFFER_BYTES] */
    piece          pieces[NW_STREAM_DEPTH];
    const nw_file *file;
    const char    *path;
    uint64_t       offset, bytes;           /* of the range */
    uint64_t       asked, submitted, given; /* pieces; `asked` counts given ones and the one that is out */
};

uint64_t nw_stream_bytes(void)
{
    return sizeof(struct nw_stream) + NW_STREAM_DEPTH * BUFFER_BYTES;
}

nw_code nw_stream_open(nw_memory *mem, nw_io *io, nw_stream **ret_stream, nw_error *err)
{
    NW_CHECK(nw_io_depth(io) >= NW_STREAM_DEPTH);
    nw_stream *s = nw_memory_alloc(mem, NW_TAG_IO, 1, sizeof *s);
    if (s == NULL)
        return nw_memory_fail(mem, err, sizeof *s, "reading ahead");
    s->mem = mem;
    s->io = io;
    s->buffers = nw_memory_map(mem, NW_TAG_IO, NW_STREAM_DEPTH * BUFFER_BYTES, false);
    if (s->buffers == NULL) {
        nw_stream_close(s);
        return nw_memory_fail(mem, err, NW_STREAM_DEPTH * BUFFER_BYTES, "reading ahead");
    }
    for (size_t i = 0; i < NW_STREAM_DEPTH; i++)
        s->pieces[i].bytes = s->buffers + i * BUFFER_BYTES;
    *ret_stream = s;
    return NW_OK;
}

static piece *piece_at(nw_stream *s, uint64_t index)
{
    return &s->pieces[index % NW_STREAM_DEPTH];
}

static void reap(nw_stream *s)
{
    nw_io_done done[NW_STREAM_DEPTH];
    size_t     count = nw_io_reap(s->io, done, NW_STREAM_DEPTH, true);
    for (size_t i = 0; i < count; i++) {
        piece *p = &s->pieces[done[i].tag];
        p->done = true;
        p->os_errno = done[i].os_errno;
        nw_file_drop(s->file, p->extent.offset, p->extent.bytes);
    }
}

static void drain(nw_stream *s)
{
    while (nw_io_in_flight(s->io) > 0)
        reap(s);
}

nw_stream *nw_stream_close(nw_stream *s)
{
    if (s == NULL)
        return NULL;
    drain(s);
    nw_memory_unmap(s->mem, NW_TAG_IO, s->buffers, NW_STREAM_DEPTH * BUFFER_BYTES);
    nw_memory_free(s->mem, NW_TAG_IO, s, 1, sizeof *s);
    return NULL;
}

static uint64_t piece_count(const nw_stream *s)
{
    return (s->bytes + NW_STREAM_PIECE - 1) / NW_STREAM_PIECE;
}

static size_t piece_len(const nw_stream *s, uint64_t index)
{
    return (size_t)nw_min_u64(NW_STREAM_PIECE, s->bytes - index * NW_STREAM_PIECE);
}

/* Reads into every buffer that is free; the one that is out is not. */
static void submit(nw_stream *s)
{
    for (; s->submitted < piece_count(s) && s->submitted - s->given < NW_STREAM_DEPTH; s->submitted++) {
        piece *p = piece_at(s, s->submitted);
        p->extent = nw_file_extent(s->file, s->offset + s->submitted * NW_STREAM_PIECE, piece_len(s, s->submitted));
        NW_CHECK(p->extent.bytes <= BUFFER_BYTES);
        p->done = false;
        nw_io_op op = {.kind = NW_IO_READ,
                       .fd = s->file->fd,
                       .offset = p->extent.offset,
                       .buf = p->bytes,
                       .bytes = p->extent.bytes,
                       .bytes_needed = p->extent.bytes_needed,
                       .tag = s->submitted % NW_STREAM_DEPTH};
        bool     queued = nw_io_submit(s->io, &op);
        NW_CHECK(queued);
    }
    nw_io_flush(s->io);
}

void nw_stream_begin(nw_stream *s, const nw_file *file, const char *path, uint64_t offset, uint64_t bytes)
{
    NW_CHECK(offset <= file->size && bytes <= file->size - offset);
    NW_CHECK(file->align <= 65536);
    drain(s);
    s->file = file;
    s->path = path;
    s->offset = offset;
    s->bytes = bytes;
    s->asked = s->submitted = s->given = 0;
    submit(s);
}

nw_code nw_stream_next(nw_stream *s, const void **ret_bytes, size_t *ret_len, uint64_t *read_bytes, nw_error *err)
{
    s->given = s->asked; /* the piece that was out is free */
    *ret_len = 0;
    if (s->given == piece_count(s))
        return NW_OK;
    submit(s);
    piece *p = piece_at(s, s->given);
    while (!p->done)
        reap(s);
    if (p->os_errno != 0) {
        nw_code rc;
        if (p->os_errno == NW_IO_EOF)
            rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' ends before byte %llu: it was cut short", s->path,
                         (unsigned long long)(p->extent.offset + p->extent.bytes_needed));
        else
            rc = nw_fail(err, NW_E_IO, p->os_errno, "reading '%s' at %llu", s->path,
                         (unsigned long long)p->extent.offset);
        if (err != NULL)
            err->offset = p->extent.offset;
        return rc;
    }
    if (read_bytes != NULL)
        *read_bytes += p->extent.bytes_counted;
    *ret_bytes = p->bytes + p->extent.skip;
    *ret_len = piece_len(s, s->given);
    s->asked = s->given + 1;
    return NW_OK;
}
