/* The manifest of a pack, whose checksum is made right first if it ends as it should. What is accepted names plain
 * files only, each once. */
#include "fuzz_file.h"

#include "pack_state.h"

#include <stdlib.h>
#include <xxhash.h>

enum { END = 20 };

static void check_manifest(const nw_pack *p)
{
    NW_CHECK(p->shard_count > 0 && strcmp(p->index_file.name, "tiles.idx") == 0);
    NW_CHECK((p->about.forms & ~((1u << NW_FORM_COUNT) - 1)) == 0);
    NW_CHECK(p->about.model != NULL && p->about.tool != NULL && p->about.compress != NULL);
    for (size_t i = 0; i < p->shard_count; i++) {
        const char *name = p->shard_files[i].name;
        NW_CHECK(strncmp(name, "pack-", 5) == 0 && strchr(name, '/') == NULL && strlen(name) == 23);
    }
    for (size_t i = 0; i < p->file_count; i++) {
        const char *name = p->files[i].name;
        NW_CHECK(name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) <= 255);
        NW_CHECK(strcmp(name, "manifest.json") != 0 && strcmp(name, "tiles.idx") != 0);
        for (size_t k = 0; k < i; k++)
            NW_CHECK(strcmp(p->files[k].name, name) != 0);
    }
    for (size_t i = 0; i < p->alias_count; i++) {
        NW_CHECK(nw_tensor_name_ok(p->aliases[i].name, strlen(p->aliases[i].name)));
        NW_CHECK(nw_tensor_name_ok(p->aliases[i].kept, strlen(p->aliases[i].kept)));
    }
    size_t held = 0;
    for (size_t i = 0; i < p->shard_count; i++) {
        for (size_t k = 0; k < nw_pack_block_count(p, i); k++, held++)
            NW_CHECK(nw_pack_block(p, i, k) != NULL);
    }
    NW_CHECK(held == p->holding_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file = {.fd = -1};
    if (size > 1 << 20)
        return 0;
    if (file.fd < 0)
        file = fuzz_file_make();
    char *text = malloc(size + 1);
    NW_CHECK(text != NULL);
    memcpy(text, data, size);
    if (size >= END && memcmp(text + size - 4, "\"\n}\n", 4) == 0) {
        char digits[17];
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)XXH3_64bits(text, size - END));
        memcpy(text + size - END, digits, 16);
    }
    fuzz_file_set(&file, text, size);
    free(text);

    nw_memory mem;
    nw_error  err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_pack p = {.mem = &mem, .io = fuzz_io(), .names = {.mem = &mem}, .manifest_path = file.path};
    nw_code rc = nw_pack_read_manifest(&p, &err);
    if (fuzz_parsed(rc, &err))
        check_manifest(&p);
    nw_memory_free(&mem, NW_TAG_INDEX, p.shard_files, p.shard_cap, sizeof *p.shard_files);
    nw_memory_free(&mem, NW_TAG_INDEX, p.files, p.file_cap, sizeof *p.files);
    nw_memory_free(&mem, NW_TAG_INDEX, p.aliases, p.alias_cap, sizeof *p.aliases);
    nw_memory_free(&mem, NW_TAG_INDEX, p.holdings, p.holding_cap, sizeof *p.holdings);
    nw_names_free(&p.names);
    fuzz_memory_check(&mem, 8 * size);
    return 0;
}
