/* The zip archives of torch.save: PREFIX/data.pkl, PREFIX/data/KEY for each storage, and a few small entries.
 *
 * minizip does the grammar of zip and ZIP64, over reads of ours: the central directory in one stream, each local header
 * in one small read, and no payload at all. It is lenient where archives disagree with themselves, so everything that
 * could give an entry a second meaning is checked here: names, sizes and flags of the local header against the central
 * one, each entry's place, that no two share a byte, that nothing stands before, behind, or in place of the directory.
 * After that a payload is a range of the file like any tensor's.
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

typedef struct {
    const char *name; /* behind the prefix and its slash */
    uint64_t    central;
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
    if ((info->flag & 0x2041u) != 0)
        return broken_entry(a, name, "it is encrypted", err);
    if (info->compression_method != 0) {
        return nw_fail(err, NW_E_UNSUPPORTED, 0,
                       "'%s': entry '%.100s' of the zip archive is compressed, which torch.save never does",
                       a->source->path, name);
    }
    if (info->compressed_size != info->uncompressed_size)
        return broken_entry(a, name, "it has two different sizes", err);
    if (info->compressed_size > a->source->file->size)
        return broken_entry(a, name, "it is larger than the file", err);
    if (info->disk_num_start != 0)
        return broken_entry(a, name, "it is on another disk", err);
    return NW_OK;
}

/* The current entry of the central directory, into the table. */
static nw_code take_entry(archive *a, nw_error *err)
{
    char            name[NW_ZIP_NAME_MAX + 1];
    unz_file_info64 info;
    unz64_file_pos  pos;
    if (unzGetCurrentFileInfo64(a->zip, &info, name, sizeof name, NULL, 0, NULL, 0) != UNZ_OK ||
        unzGetFilePos64(a->zip, &pos) != UNZ_OK)
        return broken(a, "its directory cannot be read", err);
    if (info.size_filename == 0 || info.size_filename > NW_ZIP_NAME_MAX)
        return broken(a, "an entry with an empty or too long name", err);
    name[info.size_filename] = '\0';
    if (strlen(name) != info.size_filename || !nw_tensor_name_ok(name, info.size_filename))
        return broken(a, "an entry with control characters in its name", err);
    nw_code rc = check_info(a, name, &info, err);
    if (rc == NW_OK && a->count == 0)
        rc = take_prefix(a, name, err);
    if (rc != NW_OK)
        return rc;
    if (strncmp(name, a->prefix, a->prefix_len) != 0 || name[a->prefix_len] != '/')
        return broken_entry(a, name, "it is not in the folder of the first entry", err);
    if (a->count == NW_ZIP_ENTRIES_MAX)
        return broken(a, "too many entries", err);

    const char *copy = name + a->prefix_len + 1;
    copy = nw_names_add(&a->names, copy, strlen(copy));
    entry *grown = copy != NULL ? nw_array_grow(a->source->mem, a->entries, a->count, &a->cap, sizeof *grown) : NULL;
    if (grown == NULL)
        return nw_memory_fail(a->source->mem, err, sizeof *grown * (a->cap * 2 + 1), a->source->path);
    a->entries = grown;
    a->entries[a->count++] = (entry){.name = copy, .central = pos.pos_in_zip_directory, .bytes = info.compressed_size};
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

/* Finds the payload behind the local header, which must say the same as the directory. */
static nw_code locate(archive *a, entry *e, nw_error *err)
{
    unz64_file_pos pos = {.pos_in_zip_directory = e->central, .num_of_file = 0};
    int            method = 0;
    if (unzGoToFilePos64(a->zip, &pos) != UNZ_OK || unzOpenCurrentFile2(a->zip, &method, NULL, 1) != UNZ_OK)
        return broken_entry(a, e->name, "its local header does not match the directory", err);
    e->offset = unzGetCurrentFileZStreamPos64(a->zip);
    int extra = unzGetLocalExtrafield(a->zip, NULL, 0);
    unzCloseCurrentFile(a->zip);

    /* The same bytes again, from the chunk at hand: what minizip does not compare. */
    size_t        name_len = a->prefix_len + 1 + strlen(e->name);
    uint64_t      before = LOCAL_BYTES + name_len + (uint64_t)(extra > 0 ? extra : 0);
    unsigned char local[LOCAL_BYTES + NW_ZIP_NAME_MAX];
    if (extra < 0 || e->offset < before || e->offset > a->split || e->bytes > a->split - e->offset)
        return broken_entry(a, e->name, "it lies outside the file, or in its directory", err);
    e->header = e->offset - before;
    nw_code rc = nw_chunk_copy(&a->narrow, e->header, local, LOCAL_BYTES + name_len, err);
    if (rc != NW_OK)
        return rc;
    const char *name = (const char *)local + LOCAL_BYTES;
    bool        same = memcmp(local, "PK\3\4", 4) == 0 && (nw_le(local + 6, 2) & 0x2041u) == 0 &&
                nw_le(local + 26, 2) == name_len && memcmp(name, a->prefix, a->prefix_len) == 0 &&
                name[a->prefix_len] == '/' &&
                memcmp(name + a->prefix_len + 1, e->name, name_len - a->prefix_len - 1) == 0;
    /* A size that stands here must be the directory's; 0 stands for "behind the data", all ones for ZIP64. */
    for (size_t at = 18; at <= 22; at += 4) {
        uint64_t size = nw_le(local + at, 4);
        same = same && (size == e->bytes || size == UINT32_MAX || (size == 0 && (local[6] & 8) != 0));
    }
    return same ? NW_OK : broken_entry(a, e->name, "its local header does not match the directory", err);
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
        if (a->entries[i].header < a->entries[i - 1].offset + a->entries[i - 1].bytes)
            return broken_entry(a, a->entries[i].name, "it overlaps another entry", err);
    }
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
