/* The documents beside a tokenizer: tokenizer_config.json, special_tokens_map.json and added_tokens.json, one after
 * another with a NUL between them, after two bytes that choose the model: bit 0 of the first ByT5, else a small unigram
 * model; the rest the size of the vocabulary. */
#include "fuzz_tokenizer.h"
#include "make_spiece.h"
#include "tokenizer_files.h"

#define PIECES 140u

static const nw_spiece_file *small_model(void)
{
    static unsigned char  bytes[8192];
    static nw_spiece_file file;
    if (file.bytes == NULL) {
        nw_memory mem;
        nw_error  err = {0};
        size_t    len = make_spiece(bytes, sizeof bytes, PIECES);
        NW_CHECK(len <= sizeof bytes);
        nw_memory_init(&mem, UINT64_MAX, NULL);
        nw_code rc = nw_spiece_read(&mem, "small", bytes, len, &file, &err);
        NW_CHECK(rc == NW_OK);
    }
    return &file;
}

/* Every token is there under its name alone, with an id that exists, and a text that begins with it is seen to. */
static size_t check_specials(const nw_tokenizer_files *files, char *text, size_t cap)
{
    nw_memory          mem;
    nw_error           err = {0};
    nw_tokenizer_parts parts;
    size_t             len = 0;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_tokenizer_parts_open(&mem, files, &parts, &err);
    NW_CHECK(rc == NW_OK);
    const nw_specials *s = &parts.specials;
    uint32_t           id_end = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const nw_special *item = &s->items[i];
        const char       *name = nw_specials_name(s, item);
        NW_CHECK(item->name_len >= 1 && item->name_at + item->name_len <= s->names_len);
        NW_CHECK(item->id < files->vocab_size);
        NW_CHECK(fuzz_utf8(name, item->name_len));
        NW_CHECK(nw_specials_match(s, name, item->name_len) == item);
        if (i > 0) {
            size_t before = s->items[i - 1].name_len;
            int    order = memcmp(nw_specials_name(s, item - 1), name, nw_min_size(before, item->name_len));
            NW_CHECK(order < 0 || (order == 0 && before < item->name_len));
        }
        id_end = item->id >= id_end ? item->id + 1 : id_end;
        if (item->name_len + 2 <= cap - len) {
            memcpy(text + len, name, item->name_len);
            memcpy(text + len + item->name_len, " a", 2);
            len += item->name_len + 2;
        }
    }
    NW_CHECK(id_end == s->id_end && s->extra_ids <= files->vocab_size);
    nw_tokenizer_parts_close(&parts);
    NW_CHECK(mem.live == 0);
    return len;
}

/* The text up to the next NUL; NULL if there is none left. */
static const char *next_document(const uint8_t *data, size_t size, size_t *at, size_t *ret_len)
{
    *ret_len = 0;
    if (*at >= size)
        return NULL;
    const char    *text = (const char *)data + *at;
    const uint8_t *end = memchr(data + *at, 0, size - *at);
    *ret_len = end != NULL ? (size_t)(end - (data + *at)) : size - *at;
    *at += *ret_len + 1;
    return *ret_len > 0 ? text : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[4096];
    if (size < 2)
        return 0;
    bool                  byt5 = (data[0] & 1) != 0;
    const nw_spiece_file *file = small_model();
    uint32_t              room = (uint32_t)(data[0] >> 1) << 8 | data[1];
    nw_tokenizer_files    files = {.name = "input",
                                   .spiece = byt5 ? NULL : file->bytes,
                                   .spiece_bytes = byt5 ? 0 : file->len,
                                   .vocab_size = (byt5 ? 250 : PIECES - 4) + room,
                                   .pad_id = 0,
                                   .eos_id = 1};
    size_t                at = 2;
    files.config = next_document(data, size, &at, &files.config_bytes);
    files.special = next_document(data, size, &at, &files.special_bytes);
    files.added = next_document(data, size, &at, &files.added_bytes);
    nw_tokenizer_facts facts;
    if (!fuzz_tokenizer_check(&files, &facts))
        return 0;
    size_t len = check_specials(&files, text, sizeof text);
    fuzz_tokenizer_use(&files, &facts, text, len);
    return 0;
}
