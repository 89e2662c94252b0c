/* nw_pack_check, and what nw_model_pack_describe says: every flipped byte of a pack is found, by the strip it is in;
 * what keeps a check from going on is an error and no verdict. */
#include "pack_checks.h"

static void make_pack(const char *from, const char *to, const nw_pack_options *how)
{
    char            src[1024];
    nw_error        err = {0};
    nw_pack_result  r;
    nw_pack_options o = *how;
    o.dir = to;
    golden_dir(from, src);
    nw_code rc = model_pack(src, &o, NULL, &r, &err);
    if (rc != NW_OK)
        printf("%s\n", err.msg);
    NW_CHECK(rc == NW_OK);
}

typedef struct {
    uint64_t count, without_tensor, rows;
    char     tensor[256], block[64], path[1024];
} seen;

static void keep(void *user, const nw_pack_bad *bad)
{
    seen *s = (seen *)user;
    s->count++;
    s->without_tensor += bad->tensor == NULL;
    s->rows = bad->row_count;
    snprintf(s->tensor, sizeof s->tensor, "%s", bad->tensor != NULL ? bad->tensor : "");
    snprintf(s->block, sizeof s->block, "%s", bad->block != NULL ? bad->block : "");
    snprintf(s->path, sizeof s->path, "%s", bad->path);
    NW_CHECK((bad->tensor == NULL) == (bad->block == NULL) && bad->why[0] != '\0');
}

static nw_code check_pack(const char *dir, nw_hooks *hooks, seen *s, nw_pack_check_result *r, nw_error *err)
{
    nw_pack_check_options o = {.hooks = hooks, .on_fault = keep, .user = s};
    *s = (seen){0};
    *err = (nw_error){0};
    return nw_pack_check(dir, &o, r, err);
}

/* ---- where it is ---- */

/* The first byte of each tensor in turn. */
static void test_tensors(const temp_dir *dir)
{
    temp_path      pack = temp_dir_path(dir, "pack");
    nw_model      *m = NULL;
    nw_error       err = {0};
    nw_tensor_info t;
    size_t         blocks = 0;
    make_pack("numbers-t5", pack.text, &(nw_pack_options){.shard_bytes_max = 500000});
    NW_CHECK(nw_model_open(&(nw_model_options){.path = pack.text}, &m, &err) == NW_OK);
    for (size_t i = 0; nw_model_tensor(m, i, &t); i++) {
        seen                 s;
        nw_pack_check_result r;
        unsigned             block;
        char                 want[64], stack[16];
        flip(t.file, t.offset);
        check(check_pack(pack.text, NULL, &s, &r, &err) == NW_OK, t.name, err.msg);
        check(s.count == 1 && r.fault_count == 1 && s.without_tensor == 0, t.name, "is not one fault");
        check(strcmp(s.tensor, t.name) == 0 && strcmp(s.path, t.file) == 0, t.name, s.tensor);
        check(s.rows >= 1, t.name, "no rows");
        if (sscanf(t.name, "%7[a-z].block.%u.", stack, &block) == 2) {
            snprintf(want, sizeof want, "%s.%u", stack, block);
            check(strcmp(s.block, want) == 0, t.name, s.block);
            blocks++;
        }
        if (strcmp(t.name, "lm_head.weight") == 0)
            check(strcmp(s.block, "head") == 0, t.name, s.block);
        if (strcmp(t.name, "shared.weight") == 0)
            check(strcmp(s.block, "embedding") == 0, t.name, s.block);
        flip(t.file, t.offset);
        check(check_pack(pack.text, NULL, &s, &r, &err) == NW_OK && r.fault_count == 0, t.name, "is whole again");
        check(r.tensor_count == 98 && r.shard_count > 5 && r.read_bytes >= r.bytes, t.name, "wrong counts");
    }
    check(blocks > 80, "tensors", "hardly any is of a block");
    nw_model_close(m);
    temp_dir_empty(dir->path);
}

/* ---- what a pack says of itself ---- */

static void test_describe(const temp_dir *dir)
{
    temp_path    pack = temp_dir_path(dir, "q8");
    nw_model    *m = NULL;
    nw_error     err = {0};
    nw_pack_info p;
    uint64_t     forms = 0, stored = 0, blocks = 0;
    char         name[32];
    make_pack("odd-sizes", pack.text, &(nw_pack_options){.type = NW_TYPE_Q8});
    NW_CHECK(nw_model_open(&(nw_model_options){.path = pack.text}, &m, &err) == NW_OK);
    check(nw_model_pack_describe(m, &p) && p.lossy && strcmp(p.name, "odd-sizes") == 0, "describe", "no lossy pack");
    for (size_t i = 0; i < NW_STORED_FORMS; i++)
        forms += p.form_bytes[i];
    for (size_t i = 0; i < NW_STORED_TYPES; i++)
        stored += p.stored_bytes[i];
    check(forms == stored && stored > 0, "describe", "types and forms have other sums");
    /* Quantised is said to be lossy, what kept its type is not. */
    check(p.kept_count > 0 && p.stored_bytes[3] > 0 && p.lossy_type[3] && !p.lossy_type[0], "describe", "types");
    check(p.stored_bytes[3] * 32 == p.source_bytes[3] / 4 * 34, "describe", "q8 has 34 bytes for 32 weights");
    size_t         kept = 0;
    nw_tensor_info t;
    for (size_t i = 0; nw_model_tensor(m, i, &t); i++) {
        kept += nw_model_pack_kept(m, i);
        check(!nw_model_pack_kept(m, i) || t.dims[1] % 32 != 0, t.name, "has whole blocks");
    }
    check(kept == p.kept_count, "describe", "another number keeps its type");
    while (nw_model_block(m, 0, blocks, name) != NULL)
        blocks++;
    check(blocks > 4 && nw_model_block(m, 1, 0, name) == NULL, "describe", "blocks");
    nw_model_close(m);

    char plain[1024];
    snprintf(plain, sizeof plain, "%s/numbers-t5", NW_TEST_DATA);
    NW_CHECK(nw_model_open(&(nw_model_options){.path = plain}, &m, &err) == NW_OK);
    check(!nw_model_pack_describe(m, &p) && p.bytes == 0 && !nw_model_pack_kept(m, 0), "describe", "no pack is one");
    nw_model_close(m);
    temp_dir_empty(dir->path);
}

/* ---- what keeps it from looking ---- */

static void test_refused(const temp_dir *dir)
{
    temp_path             pack = temp_dir_path(dir, "pack"), none = temp_dir_path(dir, "none");
    nw_pack_check_result  r;
    nw_error              err = {0};
    nw_pack_check_options o = {.on_progress = stop_half_way};
    make_pack("numbers-t5", pack.text, &(nw_pack_options){0});
    check(nw_pack_check(pack.text, &o, &r, &err) == NW_E_CANCELLED, "stopped", err.msg);
    o = (nw_pack_check_options){.budget_bytes = 8 << 20};
    nw_code rc = nw_pack_check(pack.text, &o, &r, &err);
    check(rc == NW_E_BUDGET && err.bytes_needed > o.budget_bytes, "budget", err.msg);
    o.budget_bytes = err.bytes_needed;
    check(nw_pack_check(pack.text, &o, &r, &err) == NW_OK && r.fault_count == 0, "budget", err.msg);
    o = (nw_pack_check_options){0};
    check(nw_pack_check(none.text, &o, &r, &err) == NW_E_ARG, "no such path", err.msg);
    check(nw_pack_check("", &o, &r, &err) == NW_E_ARG, "no path", err.msg);
    check(nw_pack_check(dir->path, &o, &r, &err) == NW_E_FORMAT && strstr(err.msg, "is no pack") != NULL, "no pack",
          err.msg);
    temp_dir_empty(dir->path);
}

static nw_code faulty_check(void *user, nw_hooks *hooks, nw_error *err)
{
    nw_pack_check_result r;
    seen                 s;
    nw_code              rc = check_pack((const char *)user, hooks, &s, &r, err);
    check(s.count == 0 && r.fault_count == 0, "faults", "a whole pack is called damaged");
    return rc;
}

/* Any allocation and any read may fail: that is said, and is no verdict. */
static void test_faults(const temp_dir *dir)
{
    temp_path pack = temp_dir_path(dir, "pack");
    make_pack("t5-v1.1", pack.text, &(nw_pack_options){.shard_bytes_max = 300000});
    fault_points points = check_faults("faults", 1, faulty_check, pack.text);
    check(points.allocations + points.reads > 20, "faults", "hardly any point was reached");
    temp_dir_empty(dir->path);
}

int main(void)
{
    temp_dir dir = temp_dir_make();
    test_tensors(&dir);
    test_describe(&dir);
    test_refused(&dir);
    test_faults(&dir);
    temp_dir_remove(&dir);
    printf("%u failures\n", failures);
    return failures > 0;
}
