/* Writes what torch.save writes: pickles of state dicts, and zip archives of stored entries.
 *
 * As torch 2.x does it (caffe2/serialize/inline_container.cc over miniz): sizes behind the data, payloads moved to
 * multiples of 64 bytes by an extra field "FB", ZIP64 where a size or an offset needs it. Streams, so that models of
 * any size can be written; where each header stands is kept, so that tests can spoil it. */
#ifndef NW_TEST_TORCH_WRITER_H
#define NW_TEST_TORCH_WRITER_H

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

/* -- bytes -- */

typedef struct {
    unsigned char *data;
    size_t         len, cap;
} torch_bytes;

static inline void torch_put(torch_bytes *b, const void *bytes, size_t len)
{
    if (b->len + len > b->cap) {
        b->cap = (b->len + len) * 2 + 64;
        b->data = realloc(b->data, b->cap);
        NW_CHECK(b->data != NULL);
    }
    if (len > 0)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
}

/* A little-endian number of `bytes` bytes. */
static inline void torch_put_le(torch_bytes *b, uint64_t value, size_t bytes)
{
    unsigned char raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (unsigned char)(value >> (8 * i));
    torch_put(b, raw, bytes);
}

static inline void torch_put_text(torch_bytes *b, const char *text)
{
    torch_put(b, text, strlen(text));
}

/* -- pickles -- */

/* A pickle of protocol 2 as Python writes it: what may be shared is stored in the memo. */
typedef struct {
    torch_bytes out;
    uint32_t    memo_next;
    uint32_t    memo_storage, memo_cpu, memo_rebuild, memo_ordered; /* of what is written once; counted from 1 */
    char        types[8][32];                                       /* of storages, in the order of first use */
    uint32_t    memo_types[8];
    size_t      items; /* of the dict */
} torch_pickle;

static inline uint32_t torch_memo_put(torch_pickle *p)
{
    bool is_long = p->memo_next > 255;
    torch_put(&p->out, is_long ? "r" : "q", 1);
    torch_put_le(&p->out, p->memo_next, is_long ? 4 : 1);
    return ++p->memo_next;
}

static inline void torch_memo_get(torch_pickle *p, uint32_t index)
{
    bool is_long = index - 1 > 255;
    torch_put(&p->out, is_long ? "j" : "h", 1);
    torch_put_le(&p->out, index - 1, is_long ? 4 : 1);
}

static inline void torch_text(torch_pickle *p, const char *text)
{
    torch_put(&p->out, "X", 1);
    torch_put_le(&p->out, strlen(text), 4);
    torch_put_text(&p->out, text);
}

/* The text, by the memo from the second time on. */
static inline void torch_text_once(torch_pickle *p, const char *text, uint32_t *memo)
{
    if (*memo > 0) {
        torch_memo_get(p, *memo);
    } else {
        torch_text(p, text);
        *memo = torch_memo_put(p);
    }
}

/* "module\nname\n", by the memo from the second time on. */
static inline void torch_global_once(torch_pickle *p, const char *lines, uint32_t *memo)
{
    if (*memo > 0) {
        torch_memo_get(p, *memo);
    } else {
        torch_put(&p->out, "c", 1);
        torch_put_text(&p->out, lines);
        *memo = torch_memo_put(p);
    }
}

static inline void torch_int(torch_pickle *p, uint64_t value)
{
    size_t      bytes = value < 256 ? 1 : value < 65536 ? 2 : value <= INT32_MAX ? 4 : 8;
    const char *code = bytes == 1 ? "K" : bytes == 2 ? "M" : bytes == 4 ? "J" : "\x8a\x08";
    torch_put(&p->out, code, bytes == 8 ? 2 : 1);
    torch_put_le(&p->out, value, bytes);
}

static inline void torch_tuple(torch_pickle *p, const uint64_t *values, size_t count)
{
    static const char *const codes[] = {")", "\x85", "\x86", "\x87"};
    if (count > 3)
        torch_put(&p->out, "(", 1);
    for (size_t i = 0; i < count; i++)
        torch_int(p, values[i]);
    torch_put(&p->out, count > 3 ? "t" : codes[count], 1);
    if (count > 0)
        torch_memo_put(p);
}

static inline void torch_pickle_begin(torch_pickle *p)
{
    *p = (torch_pickle){0};
    torch_put(&p->out, "\x80\x02}", 3);
    torch_memo_put(p);
}

/* One tensor of the dict. `type` is "FloatStorage" and the like; strides are in elements. `legacy`: the form of
 * persistent ids before 1.6. */
typedef struct {
    const char     *name, *type, *key;
    uint64_t        numel, offset; /* of the storage; into it */
    const uint64_t *dims, *strides;
    size_t          dim_count;
    bool            legacy;
} torch_tensor;

static inline void torch_storage_id(torch_pickle *p, const torch_tensor *t)
{
    char   lines[48];
    size_t type = 0;
    while (type < 7 && p->types[type][0] != '\0' && strcmp(p->types[type], t->type) != 0)
        type++;
    snprintf(p->types[type], sizeof p->types[type], "%s", t->type);
    snprintf(lines, sizeof lines, "torch\n%s\n", t->type);
    torch_put(&p->out, "(", 1);
    torch_text_once(p, "storage", &p->memo_storage);
    torch_global_once(p, lines, &p->memo_types[type]);
    torch_text(p, t->key);
    torch_memo_put(p);
    torch_text_once(p, "cpu", &p->memo_cpu);
    torch_int(p, t->numel);
    if (t->legacy)
        torch_put(&p->out, "N", 1);
    torch_put(&p->out, "t", 1);
    torch_memo_put(p);
    torch_put(&p->out, "Q", 1);
}

/* The key and the value; Python writes them in batches of 1000, between a mark and SETITEMS. */
static inline void torch_pickle_tensor(torch_pickle *p, const torch_tensor *t)
{
    if (p->items++ % 1000 == 0)
        torch_put(&p->out, p->items == 1 ? "(" : "u(", p->items == 1 ? 1 : 2);
    torch_text(p, t->name);
    torch_memo_put(p);
    torch_global_once(p, "torch._utils\n_rebuild_tensor_v2\n", &p->memo_rebuild);
    torch_put(&p->out, "(", 1);
    torch_storage_id(p, t);
    torch_int(p, t->offset);
    torch_tuple(p, t->dims, t->dim_count);
    torch_tuple(p, t->strides, t->dim_count);
    torch_put(&p->out, "\x89", 1);
    torch_global_once(p, "collections\nOrderedDict\n", &p->memo_ordered);
    torch_put(&p->out, ")R", 2);
    torch_memo_put(p);
    torch_put(&p->out, "t", 1);
    torch_memo_put(p);
    torch_put(&p->out, "R", 1);
    torch_memo_put(p);
}

static inline void torch_pickle_end(torch_pickle *p)
{
    torch_put_text(&p->out, p->items > 0 ? "u." : ".");
}

/* Row-major strides of a shape. */
static inline void torch_strides(const uint64_t *dims, size_t count, uint64_t *strides)
{
    uint64_t step = 1;
    for (size_t d = count; d > 0; d--) {
        strides[d - 1] = step;
        step *= dims[d - 1];
    }
}

/* -- zip archives -- */

typedef struct {
    char     name[200]; /* with the prefix */
    uint64_t local, data, bytes, central;
    uint32_t crc;
} torch_entry;

typedef struct {
    FILE        *file;
    char         prefix[100];
    uint64_t     at;
    torch_entry *entries;
    size_t       count;
    bool         zip64;              /* write ZIP64 records also where nothing needs them */
    uint64_t     end64, end;         /* where the end records are; end64 is 0 if there is none */
    uint64_t     central, directory; /* where the directory is, and how long */
} torch_zip;

static inline void torch_zip_write(torch_zip *z, const void *bytes, size_t len)
{
    NW_CHECK(fwrite(bytes, 1, len, z->file) == len);
    z->at += len;
}

static inline void torch_zip_flush(torch_zip *z, torch_bytes *b)
{
    torch_zip_write(z, b->data, b->len);
    free(b->data);
    *b = (torch_bytes){0};
}

static inline void torch_zip_open(torch_zip *z, FILE *file, const char *prefix)
{
    *z = (torch_zip){.file = file};
    snprintf(z->prefix, sizeof z->prefix, "%s", prefix);
}

/* Begins an entry whose name behind the prefix is `name`, of exactly `bytes` bytes. */
static inline void torch_zip_begin(torch_zip *z, const char *name, uint64_t bytes)
{
    z->entries = realloc(z->entries, (z->count + 1) * sizeof *z->entries);
    NW_CHECK(z->entries != NULL);
    torch_entry *e = &z->entries[z->count++];
    *e = (torch_entry){.local = z->at, .bytes = bytes};
    snprintf(e->name, sizeof e->name, "%s/%s", z->prefix, name);
    size_t      name_len = strlen(e->name);
    bool        large = bytes >= UINT32_MAX;
    size_t      fixed = large ? 20 : 0;
    uint64_t    start = z->at + 30 + name_len + fixed + 4;
    size_t      padding = (size_t)((64 - start % 64) % 64);
    torch_bytes b = {0};
    torch_put_text(&b, "PK\3\4");
    torch_put_le(&b, large ? 45 : 0, 2);
    torch_put_le(&b, 0x0808, 2); /* sizes follow the data; UTF-8 */
    torch_put_le(&b, 0, 2 + 4);  /* stored; no time */
    torch_put_le(&b, 0, 4);      /* CRC */
    torch_put_le(&b, large ? UINT32_MAX : 0, 4);
    torch_put_le(&b, large ? UINT32_MAX : 0, 4);
    torch_put_le(&b, name_len, 2);
    torch_put_le(&b, fixed + 4 + padding, 2);
    torch_put_text(&b, e->name);
    if (large) {
        torch_put_le(&b, 1, 2);
        torch_put_le(&b, 16, 2);
        torch_put_le(&b, bytes, 8);
        torch_put_le(&b, bytes, 8);
    }
    torch_put_text(&b, "FB");
    torch_put_le(&b, padding, 2);
    for (size_t i = 0; i < padding; i++)
        torch_put_text(&b, "Z");
    torch_zip_flush(z, &b);
    e->data = z->at;
}

static inline void torch_zip_data(torch_zip *z, const void *bytes, size_t len)
{
    torch_entry *e = &z->entries[z->count - 1];
    e->crc = (uint32_t)crc32(e->crc, bytes, (uInt)len);
    torch_zip_write(z, bytes, len);
}

static inline void torch_zip_end(torch_zip *z)
{
    torch_entry *e = &z->entries[z->count - 1];
    NW_CHECK(z->at == e->data + e->bytes);
    size_t      width = e->bytes >= UINT32_MAX ? 8 : 4;
    torch_bytes b = {0};
    torch_put_text(&b, "PK\7\10");
    torch_put_le(&b, e->crc, 4);
    torch_put_le(&b, e->bytes, width);
    torch_put_le(&b, e->bytes, width);
    torch_zip_flush(z, &b);
}

static inline void torch_zip_add(torch_zip *z, const char *name, const void *bytes, size_t len)
{
    torch_zip_begin(z, name, len);
    torch_zip_data(z, bytes, len);
    torch_zip_end(z);
}

static inline void torch_zip_central(torch_zip *z, torch_entry *e)
{
    bool        large = e->bytes >= UINT32_MAX, far = e->local >= UINT32_MAX;
    size_t      extra = (large ? 16u : 0) + (far ? 8u : 0);
    torch_bytes b = {0};
    e->central = z->at;
    torch_put_text(&b, "PK\1\2");
    torch_put_le(&b, 0, 2);
    torch_put_le(&b, extra > 0 ? 45 : 0, 2);
    torch_put_le(&b, 0x0808, 2);
    torch_put_le(&b, 0, 2 + 4);
    torch_put_le(&b, e->crc, 4);
    torch_put_le(&b, large ? UINT32_MAX : e->bytes, 4);
    torch_put_le(&b, large ? UINT32_MAX : e->bytes, 4);
    torch_put_le(&b, strlen(e->name), 2);
    torch_put_le(&b, extra > 0 ? extra + 4 : 0, 2);
    torch_put_le(&b, 0, 2 + 2 + 2);
    torch_put_le(&b, 0, 4);
    torch_put_le(&b, far ? UINT32_MAX : e->local, 4);
    torch_put_text(&b, e->name);
    if (extra > 0) {
        torch_put_le(&b, 1, 2);
        torch_put_le(&b, extra, 2);
    }
    for (int i = 0; i < 2 && large; i++)
        torch_put_le(&b, e->bytes, 8);
    if (far)
        torch_put_le(&b, e->local, 8);
    torch_zip_flush(z, &b);
}

/* The directory and its end; the file stays open, the entries stay for tests (free them). */
static inline void torch_zip_close(torch_zip *z)
{
    torch_bytes b = {0};
    z->central = z->at;
    for (size_t i = 0; i < z->count; i++)
        torch_zip_central(z, &z->entries[i]);
    z->directory = z->at - z->central;
    if (z->zip64 || z->central >= UINT32_MAX || z->count >= 65535) {
        z->end64 = z->at;
        torch_put_text(&b, "PK\6\6");
        torch_put_le(&b, 44, 8);
        torch_put_le(&b, 0x031e, 2);
        torch_put_le(&b, 45, 2);
        torch_put_le(&b, 0, 8);
        torch_put_le(&b, z->count, 8);
        torch_put_le(&b, z->count, 8);
        torch_put_le(&b, z->directory, 8);
        torch_put_le(&b, z->central, 8);
        torch_put_text(&b, "PK\6\7");
        torch_put_le(&b, 0, 4);
        torch_put_le(&b, z->end64, 8);
        torch_put_le(&b, 1, 4);
        torch_zip_flush(z, &b);
    }
    z->end = z->at;
    torch_put_text(&b, "PK\5\6");
    torch_put_le(&b, 0, 4);
    torch_put_le(&b, z->count < 65535 ? z->count : 65535, 2);
    torch_put_le(&b, z->count < 65535 ? z->count : 65535, 2);
    torch_put_le(&b, z->directory, 4);
    torch_put_le(&b, z->central < UINT32_MAX ? z->central : UINT32_MAX, 4);
    torch_put_le(&b, 0, 2);
    torch_zip_flush(z, &b);
}

/* What stands beside the storages, as torch 2.x writes it: the pickle first, the rest last. */
static inline void torch_zip_facts(torch_zip *z)
{
    torch_zip_add(z, ".format_version", "1", 1);
    torch_zip_add(z, ".storage_alignment", "64", 2);
    torch_zip_add(z, "byteorder", "little", 6);
}

#endif
