/* The two files of a pack that say what is in it: tiles.idx and manifest.json. */
#include "pack_writer_state.h"

#include <stdio.h>

/* -- index -- */

static uint64_t names_bytes(const nw_pack_writer *w)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->tensor_count; i++)
        bytes += strlen(w->tensors[i].is.name) + 1;
    return bytes;
}

uint64_t nw_pack_index_bytes(const nw_pack_writer *w)
{
    return NW_PACK_HEADER_BYTES + w->tensor_count * NW_PACK_TENSOR_BYTES + w->tile_count * NW_PACK_TILE_BYTES +
           w->strip_count * NW_PACK_STRIP_BYTES + names_bytes(w) + NW_PACK_CHECK_BYTES;
}

static void put_index_header(const nw_pack_writer *w, nw_text *t)
{
    unsigned char h[NW_PACK_HEADER_BYTES] = {0};
    memcpy(h, NW_PACK_INDEX_MAGIC, 8);
    nw_put_u32(h + 8, NW_PACK_VERSION);
    nw_put_u32(h + 12, (uint32_t)w->shard_count);
    nw_put_u64(h + 16, w->tensor_count);
    nw_put_u64(h + 24, w->tile_count);
    nw_put_u64(h + 32, w->strip_count);
    nw_put_u64(h + 40, names_bytes(w));
    nw_put_u64(h + 48, nw_pack_index_bytes(w));
    nw_text_put(t, (const char *)h, sizeof h);
}

static void put_tensors(const nw_pack_writer *w, nw_text *t)
{
    uint32_t name = 0;
    for (size_t i = 0; i < w->tensor_count; i++) {
        const declared *d = w->by_name[i];
        unsigned char   r[NW_PACK_TENSOR_BYTES] = {0};
        nw_put_u32(r, name);
        name += (uint32_t)strlen(d->is.name) + 1;
        nw_put_u32(r + 4, d->tile_first);
        nw_put_u32(r + 8, (uint32_t)d->cut.tile_count);
        nw_put_u32(r + 12, d->is.stride);
        nw_put_u64(r + 16, d->is.dims[0]);
        nw_put_u64(r + 24, d->is.dims[1]);
        r[32] = (unsigned char)d->is.dim_count;
        r[33] = (unsigned char)d->is.source;
        r[34] = (unsigned char)d->is.stored;
        r[35] = d->is.lossy ? NW_PACK_LOSSY : 0;
        nw_text_put(t, (const char *)r, sizeof r);
    }
}

static void put_tiles(const nw_pack_writer *w, nw_text *t)
{
    for (size_t i = 0; i < w->tensor_count; i++) {
        const declared *d = w->by_name[i];
        for (uint32_t k = 0; k < d->cut.tile_count; k++) {
            const tile_record *tile = &w->tiles[d->tile_first + k];
            unsigned char      r[NW_PACK_TILE_BYTES];
            nw_put_u64(r, tile->offset);
            nw_put_u32(r + 8, tile->bytes);
            nw_put_u32(r + 12, tile->shard);
            nw_put_u32(r + 16, d->index);
            nw_put_u32(r + 20, k);
            nw_put_u32(r + 24, tile->strip_first);
            nw_put_u32(r + 28, (uint32_t)nw_cut_strips(&d->cut, nw_cut_rows(&d->cut, k)));
            nw_text_put(t, (const char *)r, sizeof r);
        }
    }
}

nw_code nw_pack_write_index(nw_pack_writer *w, uint64_t *ret_xxh3, nw_error *err)
{
    XXH3_state_t hash;
    XXH3_64bits_reset(&hash);
    nw_code rc = nw_output_begin(&w->out, NW_PACK_INDEX, err);
    if (rc != NW_OK)
        return rc;
    nw_text t = {.out = &w->out, .hash = &hash, .err = err};
    put_index_header(w, &t);
    put_tensors(w, &t);
    put_tiles(w, &t);
    for (uint64_t i = 0; i < w->strip_count; i++) {
        const strip_record *s = &w->strips[i];
        unsigned char       r[NW_PACK_STRIP_BYTES];
        nw_put_u64(r, s->xxh3);
        nw_put_u32(r + 8, s->offset);
        nw_put_u32(r + 12, s->bytes | (uint32_t)s->form << 24);
        nw_text_put(&t, (const char *)r, sizeof r);
    }
    for (size_t i = 0; i < w->tensor_count; i++)
        nw_text_put(&t, w->by_name[i]->is.name, strlen(w->by_name[i]->is.name) + 1);
    unsigned char check[NW_PACK_CHECK_BYTES];
    *ret_xxh3 = XXH3_64bits_digest(&hash);
    nw_put_u64(check, *ret_xxh3);
    nw_text_put(&t, (const char *)check, sizeof check);
    NW_CHECK(t.rc != NW_OK || t.bytes == nw_pack_index_bytes(w));
    return t.rc == NW_OK ? nw_output_end(&w->out, err) : t.rc;
}

/* -- manifest -- */

static void say_member(nw_text *t, const char *before, const char *key)
{
    nw_text_say(t, before);
    nw_text_string(t, key);
    nw_text_say(t, ": ");
}

/* The three members that say what a file must be. */
static void say_file(nw_text *t, const char *name, uint64_t bytes, uint64_t xxh3)
{
    say_member(t, "{", "name");
    nw_text_string(t, name);
    say_member(t, ", ", "bytes");
    nw_text_u64(t, bytes);
    say_member(t, ", ", "xxh3");
    nw_text_say(t, "\"");
    nw_text_hex(t, xxh3);
    nw_text_say(t, "\"");
}

/* Forms and types that are there, by name. */
static void say_contents(const nw_pack_writer *w, nw_text *t)
{
    uint64_t bytes[NW_STORED_COUNT] = {0};
    bool     forms[NW_FORM_COUNT] = {false}, lossy = false;
    for (size_t i = 0; i < w->tensor_count; i++) {
        const declared *d = w->by_name[i];
        uint64_t end = i + 1 < w->tensor_count ? w->tiles[w->by_name[i + 1]->tile_first].strip_first : w->strip_count;
        for (uint64_t s = w->tiles[d->tile_first].strip_first; s < end; s++) {
            bytes[d->is.stored] += w->strips[s].bytes;
            forms[w->strips[s].form] = true;
        }
        lossy = lossy || d->is.lossy;
    }
    const char *comma = "";
    say_member(t, ",\n  ", "required");
    nw_text_say(t, "[");
    for (int f = NW_FORM_PLAIN + 1; f < NW_FORM_COUNT; f++) {
        if (forms[f]) {
            nw_text_say(t, comma);
            nw_text_string(t, nw_form_name((nw_form)f));
            comma = ", ";
        }
    }
    if (w->alias_count > 0) {
        nw_text_say(t, comma);
        nw_text_string(t, NW_PACK_ALIASES);
    }
    say_member(t, "],\n  ", "lossy");
    nw_text_say(t, lossy ? "true" : "false");
    say_member(t, ",\n  ", "types");
    comma = "{";
    for (int s = 0; s < NW_STORED_COUNT; s++) {
        if (bytes[s] > 0) {
            say_member(t, comma, nw_stored_name((nw_stored)s));
            nw_text_u64(t, bytes[s]);
            comma = ", ";
        }
    }
    nw_text_say(t, "}");
}

static void say_shards(const nw_pack_writer *w, nw_text *t)
{
    size_t at = 0;
    say_member(t, ",\n  ", "shards");
    nw_text_say(t, "[");
    for (size_t i = 0; i < w->shard_count; i++) {
        char name[64];
        snprintf(name, sizeof name, NW_PACK_SHARD_FORMAT, (unsigned)i + 1, (unsigned)w->shard_count);
        nw_text_say(t, i > 0 ? ",\n    " : "\n    ");
        say_file(t, name, w->shards[i].bytes, w->shards[i].xxh3);
        say_member(t, ",\n     ", "blocks");
        nw_text_say(t, "[");
        for (const char *comma = ""; at < w->holding_count && w->holdings[at].shard == i; at++, comma = ", ") {
            nw_text_say(t, comma);
            nw_text_string(t, w->blocks[w->holdings[at].block].name);
        }
        nw_text_say(t, "]}");
    }
    say_member(t, "\n  ],\n  ", "files");
    nw_text_say(t, "[");
    for (size_t i = 0; i < w->file_count; i++) {
        nw_text_say(t, i > 0 ? ",\n    " : "\n    ");
        say_file(t, w->files[i].name, w->files[i].bytes, w->files[i].xxh3);
        nw_text_say(t, "}");
    }
    nw_text_say(t, "\n  ]");
}

static void say_aliases(const nw_pack_writer *w, nw_text *t)
{
    if (w->alias_count == 0)
        return;
    say_member(t, ",\n  ", NW_PACK_ALIASES);
    for (size_t i = 0; i < w->alias_count; i++) {
        say_member(t, i == 0 ? "{\n    " : ",\n    ", w->aliases[i].name);
        nw_text_string(t, w->tensors[w->aliases[i].tensor].is.name);
    }
    nw_text_say(t, "\n  }");
}

nw_code nw_pack_write_manifest(nw_pack_writer *w, uint64_t index_xxh3, nw_error *err)
{
    XXH3_state_t hash;
    XXH3_64bits_reset(&hash);
    nw_code rc = nw_output_begin(&w->out, NW_PACK_MANIFEST, err);
    if (rc != NW_OK)
        return rc;
    nw_text t = {.out = &w->out, .hash = &hash, .err = err};
    say_member(&t, "{\n  ", "format");
    nw_text_string(&t, NW_PACK_FORMAT);
    say_member(&t, ",\n  ", "version");
    nw_text_u64(&t, NW_PACK_VERSION);
    say_contents(w, &t);
    say_member(&t, ",\n  ", "model");
    nw_text_string(&t, w->model);
    say_member(&t, ",\n  ", "tool");
    nw_text_string(&t, w->tool);
    say_member(&t, ",\n  ", "compress");
    nw_text_string(&t, w->compress);
    say_member(&t, ",\n  ", "bytes");
    nw_text_u64(&t, w->bytes);
    say_member(&t, ",\n  ", "index");
    say_file(&t, NW_PACK_INDEX, nw_pack_index_bytes(w), index_xxh3);
    nw_text_say(&t, "}");
    say_shards(w, &t);
    say_aliases(w, &t);
    say_member(&t, ",\n  ", "manifest_xxh3");
    nw_text_say(&t, "\"");
    nw_text_hex(&t, XXH3_64bits_digest(&hash));
    nw_text_say(&t, "\"\n}\n");
    if (t.rc == NW_OK && t.bytes > NW_PACK_MANIFEST_MAX)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "too many shards for a manifest", "");
    return t.rc == NW_OK ? nw_output_end(&w->out, err) : t.rc;
}
