/* A pass that only reads, before anything was computed: what it leaves resident must answer as if a real pass had
 * filled it, in every form of pin, and what it read unchecked must be checked when it is first used. */
#include "answers.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <fcntl.h>

static unsigned failures, cases;

static void check(bool ok, const char *model, int form, const char *what)
{
    cases++;
    if (!ok && failures++ < 20)
        printf("FAILED %s, pins of form %d: %s\n", model, form, what);
}

typedef struct {
    nw_model   *model;
    nw_session *session;
    size_t      vocab;
} opened;

static opened open_with(const subject *s, nw_pin_form form)
{
    opened   o = {0};
    nw_error err = {0};
    NW_CHECK(nw_model_open(&(nw_model_options){.path = s->dir}, &o.model, &err) == NW_OK);
    nw_model_info info;
    nw_model_describe(o.model, &info);
    o.vocab = info.vocab_size;
    nw_session_options options = {.budget_bytes = 128 << 20,
                                  .max_input_tokens = s->longest,
                                  .max_output_tokens = s->tokens,
                                  .threads = 2,
                                  .force = true,
                                  .pin_form = form};
    NW_CHECK(nw_session_open(o.model, &options, &o.session, &err) == NW_OK);
    return o;
}

static nw_code generate(const opened *o, const subject *s, uint64_t *ret_hash, nw_error *err)
{
    size_t tokens;
    return answer_generate(o->session, s, 0, o->vocab, ret_hash, &tokens, err);
}

static void close_all(opened *o)
{
    nw_session_close(o->session);
    nw_model_close(o->model);
}

static void test_whole(const subject *s, uint64_t want)
{
    for (int form = NW_PINS_AUTO; form <= NW_PINS_PLAIN; form++) {
        opened   o = open_with(s, (nw_pin_form)form);
        uint64_t bytes, hash = 0;
        double   seconds;
        nw_error err = {0};
        check(nw_session_read_pass(o.session, &bytes, &seconds, &err) == NW_OK, s->name, form, err.msg);
        for (int i = 0; i < 2; i++) {
            check(generate(&o, s, &hash, &err) == NW_OK, s->name, form, err.msg);
            check(hash == want, s->name, form, "another answer after a pass that was only read");
        }
        close_all(&o);
    }
}

/* Spoils a byte in every strip of a tensor of the decoder, which is the pack's shard's own affair: at the middle of the
 * tile's bytes. */
static void spoil(const char *dir)
{
    tensor_files f;
    tensor_files_open(&f, dir);
    const nw_pack   *pack = nw_checkpoint_pack(f.c);
    const nw_tensor *wo = nw_checkpoint_find(f.c, "decoder.block.0.layer.2.DenseReluDense.wo.weight");
    NW_CHECK(wo);
    size_t        index = nw_checkpoint_index(f.c, wo);
    nw_pack_tile  tile = nw_pack_tile_at(pack, nw_pack_tensor_at(pack, index).tile_first);
    nw_pack_strip strip = nw_pack_strip_at(pack, tile.strip_first);
    int           fd = open(nw_pack_shard_path(pack, tile.shard), O_RDWR);
    unsigned char byte;
    off_t         at = (off_t)(tile.offset + strip.offset + strip.bytes / 2);
    NW_CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x5a;
    NW_CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
    tensor_files_close(&f);
}

static void test_damaged(const subject *s)
{
    for (int form = NW_PINS_AUTO; form <= NW_PINS_PLAIN; form++) {
        opened   o = open_with(s, (nw_pin_form)form);
        uint64_t bytes, hash = 0;
        double   seconds;
        nw_error err = {0};
        nw_code  rc = nw_session_read_pass(o.session, &bytes, &seconds, &err);
        check(rc == NW_OK || rc == NW_E_IO, s->name, form, err.msg);
        check(generate(&o, s, &hash, &err) == NW_E_IO, s->name, form, "an answer from a damaged pack");
        check(strstr(err.msg, "wo.weight") != NULL, s->name, form, err.msg);
        close_all(&o);
    }
}

int main(void)
{
    static const nw_compress compress[] = {NW_COMPRESS_PACKED, NW_COMPRESS_SLIM, NW_COMPRESS_OFF};
    temp_dir                 dir = temp_dir_make();
    subject                  s = {.name = "numbers-t5", .tokens = 6};
    uint64_t                 want = 0;
    nw_error                 err = {0};
    snprintf(s.dir, sizeof s.dir, "%s/numbers-t5", NW_TEST_DATA);
    subject_add(&s, 12, 768, 1);
    opened o = open_with(&s, NW_PINS_STORED);
    NW_CHECK(generate(&o, &s, &want, &err) == NW_OK);
    close_all(&o);
    test_whole(&s, want);
    for (size_t i = 0; i < sizeof compress / sizeof *compress; i++) {
        temp_path       path = temp_dir_path(&dir, "pack");
        nw_pack_options options = {.dir = path.text, .compress = compress[i], .threads = 2};
        nw_pack_result  r;
        NW_CHECK(model_pack(s.dir, &options, NULL, &r, &err) == NW_OK);
        subject packed = s;
        packed.name = i == 0 ? "packed" : i == 1 ? "slim" : "off";
        snprintf(packed.dir, sizeof packed.dir, "%s", path.text);
        test_whole(&packed, want);
        spoil(path.text);
        test_damaged(&packed);
        temp_dir_empty(dir.path);
    }
    temp_dir_remove(&dir);
    printf("%u checks, %u failed\n", cases, failures);
    return failures == 0 ? 0 : 1;
}
