/* Writing a pack.
 *
 * Tiles go to the shards in the order of the schedule, through one buffer, each at the next multiple of 4096; what is
 * remembered of them is their records. Records stand in the index by tensor, tensors by name. The index comes after the
 * last tile, and only then do the shards get their headers, which name the index by its checksum: shards that were
 * never finished, or belong to another pack, can be told. The manifest comes last of all.
 */
#include "loader/pack_writer.h"

#include "base/text.h"
#include "loader/pack.h"
#include "pack_writer_state.h"

#include <errno.h>
#include <stdio.h>

static nw_code fail_memory(nw_pack_writer *w, uint64_t bytes, nw_error *err)
{
    w->out.failed = true;
    return nw_memory_fail(w->mem, err, (size_t)bytes, w->out.dir);
}

static void temp_name(size_t shard, char ret_name[64])
{
    snprintf(ret_name, 64, "shard-%05zu.tmp", shard);
}

/* -- what is declared -- */

/* Text for people that can stand in JSON, at most 255 bytes of it: what cannot becomes '?'. */
static void copy_text(char ret_text[TEXT_MAX], const char *text)
{
    snprintf(ret_text, TEXT_MAX, "%s", text != NULL ? text : "");
    nw_text_clean(ret_text);
}

nw_code nw_pack_writer_open(nw_memory *mem, const char *dir, const nw_pack_writer_options *options,
                            nw_pack_writer **ret_writer, nw_error *err)
{
    nw_pack_writer *w = nw_memory_map(mem, NW_TAG_INDEX, sizeof *w, false);
    if (w == NULL)
        return nw_memory_fail(mem, err, sizeof *w, dir);
    w->mem = w->names.mem = mem;
    copy_text(w->model, options->model);
    copy_text(w->tool, options->tool);
    copy_text(w->compress, options->compress);
    w->shard_bytes_max = options->shard_bytes_max > 0 ? options->shard_bytes_max : UINT64_MAX;
    nw_code rc = nw_output_open(&w->out, mem, dir, err);
    if (rc != NW_OK) {
        nw_pack_writer_close(w);
        return rc;
    }
    *ret_writer = w;
    return NW_OK;
}

/* Bytes of a tile on disk if nothing shrinks. */
static uint64_t tile_bytes_max(const declared *d, uint64_t tile)
{
    uint64_t rows = nw_cut_rows(&d->cut, tile), strips = nw_cut_strips(&d->cut, rows), bytes = 0;
    if (d->is.stride > 0)
        return strips * d->is.stride;
    NW_CHECK(nw_stored_bytes(d->is.stored, rows, d->cut.cols, &bytes));
    return nw_round_up(bytes + strips * NW_PACK_STRIP_ALIGN, NW_PACK_ALIGN);
}

static const char *declaration_fault(const nw_pack_declaration *t)
{
    uint64_t bytes = 0, strip = 0;
    if (!nw_tensor_name_ok(t->name, strlen(t->name)))
        return "this cannot be the name of a tensor:";
    NW_CHECK(t->dim_count == 1 || t->dim_count == 2);
    NW_CHECK(t->stride % NW_PACK_ALIGN == 0);
    uint64_t rows = t->dim_count == 1 ? 1 : t->dims[0], cols = t->dims[t->dim_count - 1];
    if (rows == 0 || cols == 0)
        return "this tensor has no elements:";
    if (!nw_stored_bytes(t->stored, rows, cols, &bytes))
        return "this tensor is too large, or its rows are no multiple of 32:";
    nw_cut cut = nw_cut_make(rows, cols);
    if (!nw_stored_bytes(t->stored, nw_min_u64(rows, cut.strip_rows), cols, &strip) || strip > NW_PACK_STRIP_BYTES_MAX)
        return "this tensor's rows are too long:";
    return cut.tile_count > NW_PACK_TILES_MAX ? "this tensor is too large:" : NULL;
}

void nw_pack_writer_expect(nw_pack_writer *writer, uint64_t bytes)
{
    writer->bytes_expected = bytes;
}

nw_code nw_pack_writer_declare(nw_pack_writer *writer, const nw_pack_declaration *tensor, uint32_t *ret_tensor,
                               nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed && w->tiles == NULL);
    const char *why = declaration_fault(tensor);
    if (why == NULL && w->tensor_count == NW_TENSOR_COUNT_MAX)
        why = "too many tensors for this one:";
    if (why != NULL)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, why, tensor->name);
    declared d = {.is = *tensor};
    d.cut = nw_cut_make(tensor->dim_count == 1 ? 1 : tensor->dims[0], tensor->dims[tensor->dim_count - 1]);
    if (tensor->dim_count == 1)
        d.is.dims[1] = 0;
    declared *grown = nw_array_grow(w->mem, w->tensors, w->tensor_count, &w->tensor_cap, sizeof *grown);
    if (grown != NULL) {
        w->tensors = grown;
        d.is.name = nw_names_add(&w->names, tensor->name, strlen(tensor->name));
    }
    if (grown == NULL || d.is.name == NULL)
        return fail_memory(w, sizeof d * (w->tensor_cap + 1), err);
    w->tensors[w->tensor_count] = d;
    *ret_tensor = (uint32_t)w->tensor_count++;
    return NW_OK;
}

nw_code nw_pack_writer_alias(nw_pack_writer *writer, const char *name, uint32_t tensor, nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed && w->tiles == NULL);
    NW_CHECK(tensor < w->tensor_count);
    if (!nw_tensor_name_ok(name, strlen(name)))
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "this cannot be the name of a tensor:", name);
    alias *grown = nw_array_grow(w->mem, w->aliases, w->alias_count, &w->alias_cap, sizeof *grown);
    alias  a = {.tensor = tensor};
    if (grown != NULL) {
        w->aliases = grown;
        a.name = nw_names_add(&w->names, name, strlen(name));
    }
    if (grown == NULL || a.name == NULL)
        return fail_memory(w, sizeof a * (w->alias_cap + 1), err);
    w->aliases[w->alias_count++] = a;
    return NW_OK;
}

nw_code nw_pack_writer_block(nw_pack_writer *writer, const char *name, nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed && w->tiles == NULL);
    char text[TEXT_MAX];
    copy_text(text, name);
    block *grown = nw_array_grow(w->mem, w->blocks, w->block_count, &w->block_cap, sizeof *grown);
    block  b = {.first = w->schedule_count};
    if (grown != NULL) {
        w->blocks = grown;
        b.name = nw_names_add(&w->names, text, strlen(text));
    }
    if (grown == NULL || b.name == NULL)
        return fail_memory(w, sizeof b * (w->block_cap + 1), err);
    w->blocks[w->block_count++] = b;
    return NW_OK;
}

nw_code nw_pack_writer_schedule(nw_pack_writer *writer, uint32_t tensor, uint32_t tile, nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed && w->tiles == NULL);
    NW_CHECK(w->block_count > 0);
    NW_CHECK(tensor < w->tensor_count && tile < w->tensors[tensor].cut.tile_count);
    scheduled *grown = nw_array_grow(w->mem, w->schedule, w->schedule_count, &w->schedule_cap, sizeof *grown);
    if (grown == NULL)
        return fail_memory(w, sizeof *grown * (w->schedule_cap + 1), err);
    w->schedule = grown;
    w->schedule[w->schedule_count++] = (scheduled){tensor, tile};
    w->blocks[w->block_count - 1].bytes_max += tile_bytes_max(&w->tensors[tensor], tile);
    return NW_OK;
}

/* -- layout -- */

static int compare_names(const void *a, const void *b)
{
    const declared *const *x = a, *const *y = b;
    return strcmp((*x)->is.name, (*y)->is.name);
}

static int compare_aliases(const void *a, const void *b)
{
    const alias *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* After the tensors have their order: no name is there twice. */
static nw_code sort_aliases(nw_pack_writer *w, nw_error *err)
{
    size_t at = 0;
    nw_sort(w->aliases, w->alias_count, sizeof *w->aliases, compare_aliases);
    for (size_t i = 0; i < w->alias_count; i++) {
        const char *name = w->aliases[i].name;
        while (at < w->tensor_count && strcmp(w->by_name[at]->is.name, name) < 0)
            at++;
        bool tensor = at < w->tensor_count && strcmp(w->by_name[at]->is.name, name) == 0;
        if (tensor || (i > 0 && strcmp(w->aliases[i - 1].name, name) == 0))
            return nw_output_fail(&w->out, err, NW_E_ARG, 0, "declared twice:", name);
    }
    return NW_OK;
}

/* Tensors get their indexes, and their tiles and strips their places in the tables. */
static nw_code index_tensors(nw_pack_writer *w, nw_error *err)
{
    for (size_t i = 0; i < w->tensor_count; i++)
        w->by_name[i] = &w->tensors[i];
    nw_sort(w->by_name, w->tensor_count, sizeof *w->by_name, compare_names);
    for (size_t i = 0; i < w->tensor_count; i++) {
        declared *d = &w->tensors[w->by_name[i] - w->tensors];
        if (i > 0 && strcmp(w->by_name[i - 1]->is.name, d->is.name) == 0)
            return nw_output_fail(&w->out, err, NW_E_ARG, 0, "declared twice:", d->is.name);
        d->index = (uint32_t)i;
        d->tile_first = (uint32_t)w->tile_count;
        uint64_t last = d->cut.tile_count - 1;
        uint64_t full = nw_cut_strips(&d->cut, nw_cut_rows(&d->cut, 0));
        w->tile_count += d->cut.tile_count;
        w->strip_count += last * full + nw_cut_strips(&d->cut, nw_cut_rows(&d->cut, last));
        if (w->tile_count > NW_PACK_TILES_MAX || w->strip_count > NW_PACK_TILES_MAX)
            return nw_output_fail(&w->out, err, NW_E_ARG, 0, "more tiles than an index can hold", "");
    }
    return NW_OK;
}

static nw_code lay_out(nw_pack_writer *w, nw_error *err)
{
    if (w->tensor_count == 0)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "no tensors to write", "");
    w->by_name = nw_memory_alloc(w->mem, NW_TAG_INDEX, w->tensor_count, sizeof *w->by_name);
    if (w->by_name == NULL)
        return fail_memory(w, w->tensor_count * sizeof *w->by_name, err);
    nw_code rc = index_tensors(w, err);
    if (rc == NW_OK)
        rc = sort_aliases(w, err);
    if (rc != NW_OK)
        return rc;
    w->tiles = nw_memory_alloc(w->mem, NW_TAG_INDEX, w->tile_count, sizeof *w->tiles);
    w->strips = nw_memory_alloc(w->mem, NW_TAG_INDEX, w->strip_count, sizeof *w->strips);
    if (w->tiles == NULL || w->strips == NULL)
        return fail_memory(w, w->tile_count * sizeof *w->tiles + w->strip_count * sizeof *w->strips, err);

    uint32_t strip = 0;
    for (size_t i = 0; i < w->tensor_count; i++) {
        const declared *d = w->by_name[i];
        for (uint64_t k = 0; k < d->cut.tile_count; k++) {
            w->tiles[d->tile_first + k].strip_first = strip;
            strip += (uint32_t)nw_cut_strips(&d->cut, nw_cut_rows(&d->cut, k));
        }
    }
    NW_CHECK(w->schedule_count == w->tile_count); /* every tile once */
    for (size_t i = 0; i < w->schedule_count; i++) {
        tile_record *r = &w->tiles[w->tensors[w->schedule[i].tensor].tile_first + w->schedule[i].tile];
        NW_CHECK(r->bytes == NOT_SCHEDULED);
        r->bytes = SCHEDULED;
    }
    uint64_t bytes = nw_pack_index_bytes(w);
    for (size_t i = 0; i < w->block_count; i++)
        bytes += w->blocks[i].bytes_max + NW_PACK_ALIGN;
    return nw_output_room(&w->out, w->bytes_expected > 0 ? w->bytes_expected : bytes, err);
}

/* -- shards -- */

static nw_code put(nw_pack_writer *w, const void *bytes, size_t len, nw_error *err)
{
    XXH3_64bits_update(&w->shard_hash, bytes, len);
    return nw_output_put(&w->out, bytes, len, err);
}

/* Zeros up to `offset` of the shard. */
static nw_code pad(nw_pack_writer *w, uint64_t from, uint64_t to, nw_error *err)
{
    static const unsigned char zeros[4096];
    nw_code                    rc = NW_OK;
    while (from < to && rc == NW_OK) {
        size_t part = (size_t)nw_min_u64(to - from, sizeof zeros);
        rc = put(w, zeros, part, err);
        from += part;
    }
    return rc;
}

static nw_code shard_end(nw_pack_writer *w, nw_error *err)
{
    if (w->out.fd < 0)
        return NW_OK;
    shard_record *s = &w->shards[w->shard_count - 1];
    s->bytes = w->offset;
    s->xxh3 = XXH3_64bits_digest(&w->shard_hash);
    w->bytes += s->bytes;
    return nw_output_end(&w->out, err);
}

static nw_code shard_begin(nw_pack_writer *w, nw_error *err)
{
    static const unsigned char header[NW_PACK_ALIGN]; /* until the pack is finished, none */
    char                       name[64];
    nw_code                    rc = shard_end(w, err);
    if (rc != NW_OK)
        return rc;
    if (w->shard_count == NW_PACK_SHARDS_MAX)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "more than 99999 shards", "");
    shard_record *grown = nw_array_grow(w->mem, w->shards, w->shard_count, &w->shard_cap, sizeof *grown);
    if (grown == NULL)
        return fail_memory(w, sizeof *grown * (w->shard_cap + 1), err);
    w->shards = grown;
    temp_name(w->shard_count, name);
    w->shards[w->shard_count++] = (shard_record){0};
    w->offset = NW_PACK_ALIGN;
    rc = nw_output_begin(&w->out, name, err);
    if (rc == NW_OK)
        rc = nw_output_put(&w->out, header, sizeof header, err);
    XXH3_64bits_reset(&w->shard_hash);
    return rc;
}

/* Opens the shard that the next tile, of `bytes` on disk, goes to, and notes that it holds the tile's block. */
static nw_code place(nw_pack_writer *w, uint64_t bytes, nw_error *err)
{
    bool starts = w->next_block < w->block_count && w->blocks[w->next_block].first == w->next;
    while (w->next_block < w->block_count && w->blocks[w->next_block].first == w->next)
        w->next_block++; /* of blocks without tiles only the last is in sight */
    size_t   at = w->next_block - 1;
    uint64_t needed = starts ? w->blocks[at].bytes_max : bytes;
    bool     full = w->offset > w->shard_bytes_max || nw_max_u64(needed, bytes) > w->shard_bytes_max - w->offset;
    if (w->out.fd < 0 || (full && w->offset > NW_PACK_ALIGN)) {
        nw_code rc = shard_begin(w, err);
        if (rc != NW_OK)
            return rc;
    }
    uint32_t       shard = (uint32_t)(w->shard_count - 1);
    const holding *last = w->holding_count > 0 ? &w->holdings[w->holding_count - 1] : NULL;
    if (last != NULL && last->shard == shard && last->block == at)
        return NW_OK;
    holding *grown = nw_array_grow(w->mem, w->holdings, w->holding_count, &w->holding_cap, sizeof *grown);
    if (grown == NULL)
        return fail_memory(w, sizeof *grown * (w->holding_cap + 1), err);
    w->holdings = grown;
    w->holdings[w->holding_count++] = (holding){shard, at};
    return NW_OK;
}

/* Fills the records of a tile's strips; *ret_bytes is where the last ends. */
static nw_code place_strips(nw_pack_writer *w, const declared *d, uint32_t tile, const nw_pack_strip_data *strips,
                            size_t count, uint64_t *ret_bytes, nw_error *err)
{
    uint64_t rows = nw_cut_rows(&d->cut, tile), end = 0;
    NW_CHECK(count == nw_cut_strips(&d->cut, rows));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t strip_rows = nw_min_u64(d->cut.strip_rows, rows - i * d->cut.strip_rows);
        NW_CHECK(nw_form_possible(d->is.stored, strips[i].form, strip_rows, d->cut.cols, strips[i].len));
        if (d->is.stride > 0 && strips[i].len > d->is.stride)
            return nw_output_fail(&w->out, err, NW_E_ARG, 0, "a strip is larger than its place, of", d->is.name);
        uint64_t offset = d->is.stride > 0 ? (uint64_t)i * d->is.stride : nw_round_up(end, NW_PACK_STRIP_ALIGN);
        w->strips[w->tiles[d->tile_first + tile].strip_first + i] = (strip_record){
            .xxh3 = nw_pack_strip_hash(d->index, tile, i, strips[i].bytes, strips[i].len),
            .offset = (uint32_t)offset,
            .bytes = (uint32_t)strips[i].len,
            .form = strips[i].form,
        };
        end = offset + strips[i].len;
    }
    *ret_bytes = d->is.stride > 0 ? count * d->is.stride : end;
    return NW_OK;
}

nw_code nw_pack_writer_tile(nw_pack_writer *writer, const nw_pack_strip_data *strips, size_t strip_count, nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed);
    nw_code rc = w->tiles == NULL ? lay_out(w, err) : NW_OK;
    if (rc != NW_OK)
        return rc;
    NW_CHECK(w->next < w->schedule_count); /* no more than were scheduled */
    scheduled       s = w->schedule[w->next];
    const declared *d = &w->tensors[s.tensor];
    tile_record    *r = &w->tiles[d->tile_first + s.tile];
    uint64_t        bytes = 0, at = 0;
    rc = place_strips(w, d, s.tile, strips, strip_count, &bytes, err);
    uint64_t padded = nw_round_up(bytes, NW_PACK_ALIGN);
    if (rc == NW_OK)
        rc = place(w, padded, err);
    for (size_t i = 0; i < strip_count && rc == NW_OK; i++) {
        const strip_record *strip = &w->strips[r->strip_first + i];
        rc = pad(w, at, strip->offset, err);
        if (rc == NW_OK)
            rc = put(w, strips[i].bytes, strips[i].len, err);
        at = strip->offset + strips[i].len;
    }
    if (rc == NW_OK)
        rc = pad(w, at, padded, err);
    if (rc != NW_OK)
        return rc;
    r->offset = w->offset;
    r->bytes = (uint32_t)bytes;
    r->shard = (uint32_t)(w->shard_count - 1);
    w->offset += padded;
    w->next++;
    return NW_OK;
}

/* -- files beside -- */

nw_code nw_pack_writer_file(nw_pack_writer *writer, const char *name, const void *bytes, size_t len, nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed);
    nw_pack_file *last = w->file_count > 0 ? &w->files[w->file_count - 1] : NULL;
    if (last == NULL || strcmp(last->name, name) != 0) {
        for (size_t i = 0; i < w->file_count; i++) {
            if (strcmp(w->files[i].name, name) == 0)
                return nw_output_fail(&w->out, err, NW_E_ARG, 0, "given twice:", name);
        }
        if (!nw_pack_file_name_ok(name))
            return nw_output_fail(&w->out, err, NW_E_ARG, 0, "this cannot be the name of a file in a pack:", name);
        nw_pack_file *grown = nw_array_grow(w->mem, w->files, w->file_count, &w->file_cap, sizeof *grown);
        const char   *kept = grown != NULL ? nw_names_add(&w->names, name, strlen(name)) : NULL;
        if (grown != NULL)
            w->files = grown;
        if (kept == NULL)
            return fail_memory(w, sizeof *grown * (w->file_cap + 1), err);
        last = &w->files[w->file_count++];
        *last = (nw_pack_file){.name = kept};
        XXH3_64bits_reset(&w->file_hash);
    }
    nw_code rc = nw_output_small(&w->out, name, bytes, len, err);
    if (rc != NW_OK)
        return rc;
    if (len > 0)
        XXH3_64bits_update(&w->file_hash, bytes, len);
    last->bytes += len;
    last->xxh3 = XXH3_64bits_digest(&w->file_hash);
    return NW_OK;
}

/* -- the end -- */

/* Shards get their headers and their names. */
static nw_code finish_shards(nw_pack_writer *w, uint64_t index_xxh3, nw_error *err)
{
    nw_code rc = NW_OK;
    for (size_t i = 0; i < w->shard_count && rc == NW_OK; i++) {
        unsigned char h[NW_PACK_ALIGN] = {0};
        char          from[64], to[64];
        memcpy(h, NW_PACK_SHARD_MAGIC, 8);
        nw_put_u32(h + 8, NW_PACK_VERSION);
        nw_put_u32(h + 12, (uint32_t)i);
        nw_put_u32(h + 16, (uint32_t)w->shard_count);
        nw_put_u64(h + 24, w->shards[i].bytes);
        nw_put_u64(h + 32, w->shards[i].xxh3);
        nw_put_u64(h + 40, index_xxh3);
        nw_put_u64(h + NW_PACK_SHARD_CHECK, XXH3_64bits(h, NW_PACK_SHARD_CHECK));
        temp_name(i, from);
        snprintf(to, sizeof to, NW_PACK_SHARD_FORMAT, (unsigned)i + 1, (unsigned)w->shard_count);
        rc = nw_output_rewrite(&w->out, from, h, err);
        if (rc == NW_OK)
            rc = nw_output_rename(&w->out, from, to, err);
    }
    return rc;
}

nw_code nw_pack_writer_finish(nw_pack_writer *writer, nw_error *err)
{
    nw_pack_writer *w = writer;
    NW_CHECK(!w->out.failed);
    nw_code rc = w->tiles == NULL ? lay_out(w, err) : NW_OK;
    if (rc != NW_OK)
        return rc;
    NW_CHECK(w->next == w->schedule_count); /* all tiles were written */
    uint64_t index_xxh3 = 0;
    rc = shard_end(w, err);
    if (rc == NW_OK)
        rc = nw_pack_write_index(w, &index_xxh3, err);
    w->bytes += nw_pack_index_bytes(w);
    if (rc == NW_OK)
        rc = finish_shards(w, index_xxh3, err);
    if (rc == NW_OK)
        rc = nw_pack_write_manifest(w, index_xxh3, err);
    return rc == NW_OK ? nw_output_commit(&w->out, err) : rc;
}

uint32_t nw_pack_writer_shards(const nw_pack_writer *writer)
{
    return (uint32_t)writer->shard_count;
}

uint64_t nw_pack_writer_declared_bytes(uint64_t tensor_count, uint64_t tile_count, uint64_t strip_count)
{
    /* Arrays that grow stand twice for a moment, each up to twice as long as its contents. */
    uint64_t grown = 3 * (tensor_count * sizeof(declared) + tile_count * sizeof(scheduled));
    return sizeof(nw_pack_writer) + NW_OUTPUT_BUFFER_BYTES + ((uint64_t)128 << 10) + grown + tensor_count * 100 +
           tile_count * sizeof(tile_record) + strip_count * sizeof(strip_record);
}

nw_pack_writer *nw_pack_writer_close(nw_pack_writer *writer)
{
    nw_pack_writer *w = writer;
    if (w == NULL)
        return NULL;
    nw_output_close(&w->out);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->tensors, w->tensor_cap, sizeof *w->tensors);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->aliases, w->alias_cap, sizeof *w->aliases);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->schedule, w->schedule_cap, sizeof *w->schedule);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->blocks, w->block_cap, sizeof *w->blocks);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->files, w->file_cap, sizeof *w->files);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->shards, w->shard_cap, sizeof *w->shards);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->holdings, w->holding_cap, sizeof *w->holdings);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->by_name, w->tensor_count, sizeof *w->by_name);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->tiles, w->tile_count, sizeof *w->tiles);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->strips, w->strip_count, sizeof *w->strips);
    nw_names_free(&w->names);
    nw_memory_unmap(w->mem, NW_TAG_INDEX, w, sizeof *w);
    return NULL;
}
