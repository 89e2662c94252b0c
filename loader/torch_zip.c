/* The zip archives of torch.save: PREFIX/data.pkl, PREFIX/data/KEY for each storage, and a few small entries.
 *
 * minizip finds and walks the directory, over reads of ours: the directory in one stream, each local header in one
 * small read, and no payload at all. Debian's minizip 1.1 never reads an entry's ZIP64 sizes and offset (it waits for
 * all ones in 64 bits where the file has 32), so these are taken from the extra field here, and local headers are read
 * here. Everything that could give an entry a second meaning is refused: names, sizes and flags of the local header
 * against the central one, each entry's place, that no two share a byte, that nothing stands before, between, behind,
 * or in place of the directory. After that a payload is a range of the file like any tensor's.
 *
 * The CRC-32 of entries is not checked: payloads are not read here, and torch can be told not to write it.
 *
 * Source: caffe2/serialize/inline_container.cc, torch/serialization.py; PKWARE APPNOTE 6.3.10.
 */
#include "torch_zip.h"

#include "torch_object.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <unzip.h>

#define TAIL_BYTES ((size_t)128 << 10) /* minizip looks for the directory's end in the last 64 KiB */
#define END_BYTES 22u                  /* the end record of the central directory, without a comment */
#define END64_BYTES (56u + 20u)        /* that of ZIP64, with its locator */
#define CENTRAL_BYTES 46u              /* of a central header, without name, extra field and comment */
#define LOCAL_BYTES 30u                /* of a local header, likewise */
#define EXTRA_BYTES_MAX 256u           /* of an entry's extra field in the directory */
#define DESCRIPTOR_BYTES 24u           /* CRC and sizes behind a payload, at most */
#define ENCRYPTED 0x2041u              /* bits of an entry's flags: its data, with what, its header */

typedef struct {
    const char *name;                  /* behind the prefix and its slash */
    uint32_t    crc;                   /* as the directory has it */
    uint64_t    header, offset, bytes; /* of the local header; of the payload */
    uint32_t    type;                  /* of a storage's elements, once it is mentioned */
    bool        typed;
} entry;

typedef struct {
    const nw_source *source;
    nw_chunk         wide, narrow; /* for the directory; for local headers */
    uint64_t         split;        /* what begins here is read through the wide one */
    uint64_t         at;           /* where minizip reads next */
    nw_code          failed;       /* NW_OK, or what a read came to */
    nw_error         io_err;       /* with it */
    unzFile          zip;
    nw_names         names;
    char             prefix[NW_ZIP_NAME_MAX];
    size_t           prefix_len; /* without the slash */
    entry           *entries;
    size_t           count, cap;
    uint64_t         central_end;
} archive;

static nw_code broken(const archive *a, const char *problem, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "'%s' is a broken zip archive: %s", a->source->path, problem);
}

static nw_code broken_entry(const archive *a, const char *name, const char *problem, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "'%s': entry '%.100s' of the zip archive: %s", a->source->path, name, problem);
}

/* -- what minizip reads with -- */

static voidpf io_open(voidpf opaque, const void *name, int mode)
{
    (void)name;
    (void)mode;
    return opaque;
}

static uLong io_read(voidpf opaque, voidpf stream, void *buf, uLong bytes)
{
    (void)stream;
    archive *a = opaque;
    uint64_t size = a->source->file->size;
    if (a->failed != NW_OK || a->at >= size)
        return 0;
    size_t    len = (size_t)nw_min_u64(bytes, size - a->at);
    nw_chunk *chunk = a->at >= a->split ? &a->wide : &a->narrow;
    a->failed = nw_chunk_copy(chunk, a->at, buf, len, &a->io_err);
    if (a->failed != NW_OK)
        return 0;
    a->at += len;
    return len;
}

static uLong io_write(voidpf opaque, voidpf stream, const void *buf, uLong bytes)
{
    (void)opaque;
    (void)stream;
    (void)buf;
    (void)bytes;
    return 0;
}

static ZPOS64_T io_tell(voidpf opaque, voidpf stream)
{
    (void)stream;
    return ((archive *)opaque)->at;
}

static long io_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin)
{
    (void)stream;
    archive *a = opaque;
    uint64_t from = origin == ZLIB_FILEFUNC_SEEK_CUR   ? a->at
                    : origin == ZLIB_FILEFUNC_SEEK_END ? a->source->file->size
                                                       : 0;
    a->at = from + offset; /* may wrap, as a step back does; a place outside the file reads nothing */
    return 0;
}

static int io_close(voidpf opaque, voidpf stream)
{
    (void)opaque;
    (void)stream;
    return 0;
}

static int io_error(voidpf opaque, voidpf stream)
{
    (void)stream;
    return ((archive *)opaque)->failed != NW_OK;
}

/* -- the central directory -- */

/* The first entry's first path segment is the prefix of all. */
static nw_code take_prefix(archive *a, const char *name, nw_error *err)
{
    const char *slash = strchr(name, '/');
    if (slash == NULL || slash == name)
        return broken_entry(a, name, "it is not in a folder, as torch.save writes them", err);
    a->prefix_len = (size_t)(slash - name);
    memcpy(a->prefix, name, a->prefix_len);
    return NW_OK;
}

static nw_code check_info(const archive *a, const char *name, const unz_file_info64 *info, nw_error *err)
{
    if ((info->flag & ENCRYPTED) != 0)
        return broken_entry(a, name, "it is encrypted", err);
    if (info->compression_method != 0) {
        return nw_fail(err, NW_E_UNSUPPORTED, 0,
                       "'%s': entry '%.100s' of the zip archive is compressed, which torch.save never does",
                       a->source->path, name);
    }
    if (info->disk_num_start != 0)
        return broken_entry(a, name, "it is on another disk", err);
    return NW_OK;
}

/* One 64-bit number of a ZIP64 field, where the header has all ones. */
static bool take_large(const unsigned char *field, size_t len, size_t *at, uint64_t *value)
{
    if (*value != UINT32_MAX)
        return true;
    if (len - *at < 8)
        return false;
    *value = nw_le(field + *at, 8);
    *at += 8;
    return true;
}

/* Sizes and offset of the central header at `pos`, ZIP64 or not. */
static nw_code take_place(archive *a, const char *name, const unz_file_info64 *info, uint64_t pos,
                          const unsigned char *extra, entry *ret, nw_error *err)
{
    unsigned char raw[CENTRAL_BYTES];
    if (pos > a->source->file->size - CENTRAL_BYTES)
        return broken(a, "its directory is outside the file", err);
    nw_code rc = nw_chunk_copy(&a->wide, pos, raw, sizeof raw, err);
    if (rc != NW_OK)
        return rc;
    if (memcmp(raw, "PK\1\2", 4) != 0)
        return broken(a, "its directory is not where its end says", err);
    uint64_t plain = nw_le(raw + 24, 4);
    ret->crc = (uint32_t)nw_le(raw + 16, 4);
    ret->bytes = nw_le(raw + 20, 4);
    ret->header = nw_le(raw + 42, 4);
    bool large = plain == UINT32_MAX || ret->bytes == UINT32_MAX || ret->header == UINT32_MAX;
    for (size_t at = 0, end = info->size_file_extra; at + 4 <= end;) {
        size_t len = (size_t)nw_le(extra + at + 2, 2), used = 0;
        at += 4;
        if (len > end - at)
            return broken_entry(a, name, "its extra field is cut", err);
        if (large && nw_le(extra + at - 4, 2) == 1) {
            large = false;
            if (!take_large(extra + at, len, &used, &plain) || !take_large(extra + at, len, &used, &ret->bytes) ||
                !take_large(extra + at, len, &used, &ret->header))
                return broken_entry(a, name, "its ZIP64 field is too short", err);
        }
        at += len;
    }
    if (ret->bytes != plain)
        return broken_entry(a, name, "it has two different sizes", err);
    if (ret->bytes > a->source->file->size)
        return broken_entry(a, name, "it is larger than the file", err);
    return NW_OK;
}

/* The name of the current entry, which every other is in one folder with. */
static nw_code take_name(archive *a, char *name, const unz_file_info64 *info, const char **ret, nw_error *err)
{
    if (info->size_filename == 0 || info->size_filename > NW_ZIP_NAME_MAX)
        return broken(a, "an entry with an empty or too long name", err);
    name[info->size_filename] = '\0';
    if (strlen(name) != info->size_filename || !nw_tensor_name_ok(name, info->size_filename))
        return broken(a, "an entry with control characters in its name", err);
    nw_code rc = a->count == 0 ? take_prefix(a, name, err) : NW_OK;
    if (rc != NW_OK)
        return rc;
    if (strncmp(name, a->prefix, a->prefix_len) != 0 || name[a->prefix_len] != '/')
        return broken_entry(a, name, "it is not in the folder of the first entry", err);
    const char *rest = name + a->prefix_len + 1;
    *ret = nw_names_add(&a->names, rest, strlen(rest));
    return *ret != NULL ? NW_OK : nw_memory_fail(a->source->mem, err, NW_ZIP_NAME_MAX, a->source->path);
}

/* The current entry of the central directory, into the table. */
static nw_code take_entry(archive *a, nw_error *err)
{
    char            name[NW_ZIP_NAME_MAX + 1];
    unsigned char   extra[EXTRA_BYTES_MAX];
    entry           fresh = {0};
    unz_file_info64 info;
    unz64_file_pos  pos;
    if (unzGetCurrentFileInfo64(a->zip, &info, name, sizeof name, extra, sizeof extra, NULL, 0) != UNZ_OK ||
        unzGetFilePos64(a->zip, &pos) != UNZ_OK)
        return broken(a, "its directory cannot be read", err);
    nw_code rc = take_name(a, name, &info, &fresh.name, err);
    if (rc == NW_OK)
        rc = check_info(a, name, &info, err);
    if (rc == NW_OK && info.size_file_extra > sizeof extra)
        rc = broken_entry(a, name, "its extra field is too long", err);
    if (rc == NW_OK)
        rc = take_place(a, name, &info, pos.pos_in_zip_directory, extra, &fresh, err);
    if (rc != NW_OK)
        return rc;
    if (a->count == NW_ZIP_ENTRIES_MAX)
        return broken(a, "too many entries", err);
    entry *grown = nw_array_grow(a->source->mem, a->entries, a->count, &a->cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(a->source->mem, err, sizeof *grown * a->cap * 2, a->source->path);
    a->entries = grown;
    a->entries[a->count++] = fresh;
    a->central_end =
        pos.pos_in_zip_directory + CENTRAL_BYTES + info.size_filename + info.size_file_extra + info.size_file_comment;
    return NW_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static entry *find_entry(const archive *a, const char *folder, const char *name)
{
    size_t low = 0, high = a->count, folder_len = strlen(folder);
    while (low < high) {
        size_t      middle = low + (high - low) / 2;
        const char *at = a->entries[middle].name;
        int         order = strncmp(folder, at, folder_len);
        order = order != 0 ? order : strcmp(name, at + folder_len);
        if (order == 0)
            return &a->entries[middle];
        if (order > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The end record must be the file's last bytes, and agree with what minizip found, which takes a ZIP64 record that it
 * finds anywhere near. Nothing may stand between it and the directory. */
static nw_code check_end(archive *a, uint64_t first, nw_error *err)
{
    unsigned char end[END_BYTES];
    uint64_t      size = a->source->file->size;
    nw_code       rc = nw_chunk_copy(&a->wide, size - END_BYTES, end, sizeof end, err);
    if (rc != NW_OK)
        return rc;
    if (memcmp(end, "PK\5\6", 4) != 0 || nw_le(end + 20, 2) != 0)
        return broken(a, "there is something behind its end", err);
    uint64_t count = nw_le(end + 10, 2), offset = nw_le(end + 16, 4);
    if ((count != 0xffff && count != a->count) || (offset != UINT32_MAX && offset != first))
        return broken(a, "its two ends disagree", err);
    uint64_t rest = size - a->central_end;
    if (a->central_end > size || (rest != END_BYTES && rest != END_BYTES + END64_BYTES))
        return broken(a, "its directory does not end where it should", err);
    return NW_OK;
}

static nw_code read_directory(archive *a, nw_error *err)
{
    unz_global_info64 global;
    unz64_file_pos    first;
    if (unzGetGlobalInfo64(a->zip, &global) != UNZ_OK || unzGetFilePos64(a->zip, &first) != UNZ_OK)
        return broken(a, "its directory cannot be read", err);
    if (global.number_entry == 0 || global.number_entry > NW_ZIP_ENTRIES_MAX)
        return broken(a, "an impossible number of entries", err);
    if (first.pos_in_zip_directory >= a->source->file->size)
        return broken(a, "its directory is outside the file", err);
    int next = UNZ_OK;
    while (next == UNZ_OK && a->count < global.number_entry) {
        nw_code rc = take_entry(a, err);
        if (rc != NW_OK)
            return rc;
        next = unzGoToNextFile(a->zip);
    }
    if (a->count != global.number_entry || (next != UNZ_END_OF_LIST_OF_FILE && global.number_entry != 0xffff))
        return broken(a, "its directory is cut short", err);
    nw_code rc = check_end(a, first.pos_in_zip_directory, err);
    if (rc != NW_OK)
        return rc;
    a->split = first.pos_in_zip_directory;
    return NW_OK;
}

/* -- the entries -- */

/* True if the fields of an extra field fill it exactly: its length is what places the payload. */
static nw_code check_extra(archive *a, uint64_t at, uint64_t bytes, bool *ret_ok, nw_error *err)
{
    nw_code rc = NW_OK;
    while (bytes >= 4 && rc == NW_OK) {
        unsigned char field[4];
        rc = nw_chunk_copy(&a->narrow, at, field, sizeof field, err);
        uint64_t len = rc == NW_OK ? 4 + nw_le(field + 2, 2) : 0;
        if (len > bytes)
            break;
        at += len;
        bytes -= len;
    }
    *ret_ok = bytes == 0;
    return rc;
}

/* A number of the local header must be the directory's; where its flags say so, 0 stands for "behind the payload". */
static bool same_number(const unsigned char *local, size_t at, uint64_t number, bool or_zip64)
{
    uint64_t have = nw_le(local + at, 4);
    return have == number || (have == 0 && (local[6] & 8) != 0) || (or_zip64 && have == UINT32_MAX);
}

/* Finds the payload behind the local header, which must say the same as the directory. */
static nw_code locate(archive *a, entry *e, nw_error *err)
{
    size_t        name_len = a->prefix_len + 1 + strlen(e->name);
    unsigned char local[LOCAL_BYTES + NW_ZIP_NAME_MAX];
    bool          extra_ok = false;
    if (e->header > a->split || LOCAL_BYTES + name_len > a->split - e->header)
        return broken_entry(a, e->name, "it lies outside the file, or in its directory", err);
    nw_code rc = nw_chunk_copy(&a->narrow, e->header, local, LOCAL_BYTES + name_len, err);
    if (rc != NW_OK)
        return rc;
    const char *name = (const char *)local + LOCAL_BYTES;
    bool same = memcmp(local, "PK\3\4", 4) == 0 && (nw_le(local + 6, 2) & ENCRYPTED) == 0 && nw_le(local + 8, 2) == 0 &&
                same_number(local, 14, e->crc, false) && same_number(local, 18, e->bytes, true) &&
                same_number(local, 22, e->bytes, true) && nw_le(local + 26, 2) == name_len &&
                memcmp(name, a->prefix, a->prefix_len) == 0 && name[a->prefix_len] == '/' &&
                memcmp(name + a->prefix_len + 1, e->name, strlen(e->name)) == 0;
    uint64_t extra = nw_le(local + 28, 2);
    e->offset = e->header + LOCAL_BYTES + name_len + extra;
    if (same && (e->offset > a->split || e->bytes > a->split - e->offset))
        return broken_entry(a, e->name, "it lies outside the file, or in its directory", err);
    if (same)
        rc = check_extra(a, e->offset - extra, extra, &extra_ok, err);
    if (rc == NW_OK && !extra_ok)
        rc = broken_entry(a, e->name, "its local header does not match the directory", err);
    return rc;
}

static int compare_places(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return (x->header > y->header) - (x->header < y->header);
}

static nw_code locate_all(archive *a, nw_error *err)
{
    for (size_t i = 0; i < a->count; i++) {
        nw_code rc = locate(a, &a->entries[i], err);
        if (rc != NW_OK)
            return rc;
    }
    nw_sort(a->entries, a->count, sizeof *a->entries, compare_places);
    if (a->entries[0].header != 0)
        return broken(a, "there is something before its first entry", err);
    for (size_t i = 1; i < a->count; i++) {
        uint64_t end = a->entries[i - 1].offset + a->entries[i - 1].bytes;
        if (a->entries[i].header < end)
            return broken_entry(a, a->entries[i].name, "it overlaps another entry", err);
        if (a->entries[i].header - end > DESCRIPTOR_BYTES)
            return broken(a, "there is something between its entries", err);
    }
    const entry *final = &a->entries[a->count - 1];
    if (a->split - (final->offset + final->bytes) > DESCRIPTOR_BYTES)
        return broken(a, "there is something behind its last entry", err);
    nw_sort(a->entries, a->count, sizeof *a->entries, compare_entries);
    for (size_t i = 1; i < a->count; i++) {
        if (strcmp(a->entries[i - 1].name, a->entries[i].name) == 0)
            return broken_entry(a, a->entries[i].name, "it is there twice", err);
    }
    return NW_OK;
}

/* torch 2.1 and later say how they wrote numbers; older ones were little-endian in practice. */
static nw_code check_byteorder(archive *a, nw_error *err)
{
    static const char little[] = "little";
    const entry      *e = find_entry(a, "", "byteorder");
    char              text[sizeof little - 1] = "";
    if (e == NULL)
        return NW_OK;
    if (e->bytes == sizeof text) {
        nw_code rc = nw_chunk_copy(&a->narrow, e->offset, text, sizeof text, err);
        if (rc != NW_OK)
            return rc;
    }
    if (memcmp(text, little, sizeof text) == 0)
        return NW_OK;
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': its byteorder is not little-endian", a->source->path);
}

/* -- the tensors -- */

/* Gives each storage that the pickle mentions its entry's place. */
static nw_code place_storages(archive *a, nw_torch_objects *o, nw_error *err)
{
    for (size_t i = 0; i < o->storage_count; i++) {
        nw_torch_storage *s = &o->storages[i];
        entry            *e = find_entry(a, "data/", s->key);
        if (e == NULL)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%s' is not in the archive", a->source->path, s->key);
        if (e->bytes != s->bytes) {
            return nw_fail(err, NW_E_FORMAT, 0,
                           "'%s': storage '%s' has %" PRIu64 " bytes where its count and type make %" PRIu64,
                           a->source->path, s->key, e->bytes, s->bytes);
        }
        if (e->typed && e->type != s->type)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%s' has two types", a->source->path, s->key);
        e->typed = true;
        e->type = s->type;
        s->offset = e->offset;
    }
    return NW_OK;
}

typedef struct {
    uint32_t         file;
    nw_tensor_table *table;
    nw_name_fn       name_fn;
    void            *name_user;
} target;

static nw_code read_tensors(archive *a, const target *to, nw_error *err)
{
    const entry *pickled = find_entry(a, "", "data.pkl");
    if (pickled == NULL)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is a zip archive, but not one of torch.save: it has no data.pkl",
                       a->source->path);
    if (pickled->bytes > NW_PICKLE_BYTES_MAX)
        return broken_entry(a, pickled->name, "a pickle of more than 64 MiB", err);
    nw_torch_objects objects = {.source = a->source};
    nw_pickle       *pickle = NULL;
    nw_pickle_value  root = {0};
    uint64_t         start = pickled->offset, stop = pickled->offset + pickled->bytes, end = 0;
    nw_code          rc = nw_pickle_open(a->source, &nw_torch_calls, &objects, &pickle, err);
    if (rc == NW_OK)
        rc = nw_pickle_run(pickle, start, stop, &root, &end, err);
    if (rc == NW_OK && end != stop)
        rc = nw_pickle_broken(pickle, "there is something behind its end", err);
    if (rc == NW_OK)
        rc = place_storages(a, &objects, err);
    if (rc == NW_OK)
        rc = nw_torch_tensors(&objects, pickle, root, to->file, to->table, to->name_fn, to->name_user, err);
    nw_torch_objects_free(&objects);
    nw_pickle_close(pickle);
    return rc;
}

static nw_code archive_open(archive *a, nw_error *err)
{
    zlib_filefunc64_def  io = {.zopen64_file = io_open,
                               .zread_file = io_read,
                               .zwrite_file = io_write,
                               .ztell64_file = io_tell,
                               .zseek64_file = io_seek,
                               .zclose_file = io_close,
                               .zerror_file = io_error,
                               .opaque = a};
    const unsigned char *p = NULL;
    size_t               len = 0;
    uint64_t             size = a->source->file->size;
    if (size < END_BYTES)
        return broken(a, "it is too short", err);
    nw_code rc = nw_chunk_open(&a->wide, a->source, TAIL_BYTES, err);
    if (rc == NW_OK)
        rc = nw_chunk_open(&a->narrow, a->source, NW_SMALL_CHUNK, err);
    if (rc == NW_OK) /* so that looking for the end, backwards, is one read */
        rc = nw_chunk_fetch(&a->wide, size - nw_min_u64(size, (uint64_t)96 << 10), &p, &len, err);
    if (rc != NW_OK)
        return rc;
    a->zip = unzOpen2_64("", &io);
    return a->zip != NULL ? NW_OK : broken(a, "its end is missing; is it cut short?", err);
}

nw_code nw_torch_zip_read(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                          void *name_user, nw_error *err)
{
    archive a = {.source = source, .names.mem = source->mem};
    target  to = {.file = file, .table = table, .name_fn = name_fn, .name_user = name_user};
    nw_code rc = archive_open(&a, err);
    if (rc == NW_OK)
        rc = read_directory(&a, err);
    if (rc == NW_OK)
        rc = locate_all(&a, err);
    if (a.failed != NW_OK) { /* and all that came of it */
        rc = a.failed;
        if (err != NULL)
            *err = a.io_err;
    }
    if (rc == NW_OK)
        rc = check_byteorder(&a, err);
    if (a.zip != NULL)
        unzClose(a.zip);
    a.zip = NULL;
    nw_chunk_close(&a.wide);
    if (rc == NW_OK)
        rc = read_tensors(&a, &to, err);
    nw_chunk_close(&a.narrow);
    nw_memory_free(source->mem, NW_TAG_INDEX, a.entries, a.cap, sizeof *a.entries);
    nw_names_free(&a.names);
    return rc;
}
