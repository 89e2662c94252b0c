/* Every reference vector: encoder states, logits of given decoder inputs, greedy tokens and their log-probabilities.
 *
 *   test_goldens [kernels]     "portable", "avx2", ...; the fastest by default
 *   test_goldens inferred      the weights alone, without config.json; then repacked under other names
 *   test_goldens packed        a pack of each case, packed and slim
 */
#include "bare_weights.h"
#include "golden.h"
#include "golden_check.h"
#include "narrows.h"

#include <math.h>

static const char *const cases[] = {
    "t5-v1.0-tied", "t5-v1.1", "flan-bf16-shards", "flan-f16",  "mt5",  "umt5",    "byt5",
    "ul2",          "madlad",  "encoder-only",     "odd-sizes", "long", "buckets", "three-embeddings",
    "gelu-exact",   "bin",     "bin-shards-f16"};

/* What the inferred configuration of a case has to differ in from its config.json, because no tensor tells: there the
 * vectors need --config. All other cases must be inferred exactly. */
static const struct {
    const char *name, *differs;
} not_inferred[] = {
    {"ul2", "activation"}, /* silu: told by the sizes of the published UL2, which these small ones are not */
    {"madlad", "ids"},     /* pad and end: told by its vocabulary, which is a thousand times this one */
    {"buckets", "distance"},
    {"gelu-exact", "activation"},
};

static const char *kernels;
static bool        inferred, repacked, packed;
static nw_compress compress; /* of packs */

static void check_floats(const char *name, const char *what, size_t index, const float *have, const float *want,
                         size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - (double)want[i]);
        largest = d > largest || d != d ? d : largest;
    }
    worst = largest > worst ? largest : worst;
    check(largest <= TOLERANCE, name, what, index);
}

typedef struct {
    const char  *name;
    size_t       input;
    const float *want; /* [rows, vocab] */
    size_t       first, rows, vocab;
    size_t       compared;
} logits_check;

static bool compare_logits(void *user, const nw_token *t)
{
    logits_check *l = user;
    if (t->index >= l->first) {
        check_floats(l->name, "logits of input", l->input, t->logits, l->want + (t->index - l->first) * l->vocab,
                     l->vocab);
        l->compared++;
    }
    return true;
}

static void test_logits(golden *g, nw_session *s, const char *name, size_t input, const uint32_t *ids, size_t count)
{
    size_t    forced_dims[2], dims[2];
    uint32_t *forced = golden_tensor_of(g, "decoder_input_ids", input, forced_dims);
    float    *want = golden_tensor_of(g, "logits", input, dims);
    if (forced == NULL || want == NULL) {
        free(forced);
        free(want);
        return;
    }
    size_t       steps = forced_dims[0];
    logits_check l = {
        .name = name, .input = input, .want = want, .first = steps - dims[0], .rows = dims[0], .vocab = dims[1]};
    nw_request q = {.input_ids = ids,
                    .input_count = count,
                    .forced_ids = forced + 1, /* the first is the start token */
                    .forced_count = steps - 1,
                    .max_new_tokens = steps,
                    .on_token = compare_logits,
                    .user = &l};
    nw_result  r = {0};
    nw_error   err = {0};
    nw_code    rc = nw_session_generate(s, &q, &r, &err);
    check(rc == NW_OK && l.compared == l.rows, name, rc == NW_OK ? "steps of logits" : err.msg, input);
    free(forced);
    free(want);
}

/* Greedy entries without a penalty or a minimum: the others come with those features. */
static bool is_plain_greedy(const cJSON *e)
{
    return cJSON_GetObjectItem(e, "num_beams")->valueint == 1 && !cJSON_HasObjectItem(e, "repetition_penalty") &&
           !cJSON_HasObjectItem(e, "no_repeat_ngram_size") && !cJSON_HasObjectItem(e, "min_new_tokens");
}

static void test_greedy(const cJSON *e, nw_session *s, const char *name, const uint32_t *ids, size_t count)
{
    enum { MAX = 512 };
    const cJSON *want = cJSON_GetArrayItem(cJSON_GetObjectItem(e, "sequences"), 0);
    const cJSON *lps = cJSON_GetObjectItem(e, "token_logprobs");
    uint32_t     have[MAX];
    double       have_lp[MAX];
    nw_request   q = {.input_ids = ids,
                      .input_count = count,
                      .max_new_tokens = (size_t)cJSON_GetObjectItem(e, "max_new_tokens")->valueint};
    nw_result    r = {.ids = have, .logprobs = have_lp};
    nw_error     err = {0};
    nw_code      rc = nw_session_generate(s, &q, &r, &err);
    check(rc == NW_OK && r.count == (size_t)cJSON_GetArraySize(want), name, rc == NW_OK ? "greedy length" : err.msg,
          r.count);
    for (size_t i = 0; rc == NW_OK && i < r.count && i < (size_t)cJSON_GetArraySize(want); i++) {
        check(have[i] == (uint32_t)cJSON_GetArrayItem(want, (int)i)->valueint, name, "greedy token", i);
        double d = fabs(have_lp[i] - cJSON_GetArrayItem(lps, (int)i)->valuedouble);
        worst = d > worst ? d : worst;
        check(d <= TOLERANCE, name, "log-probability", i);
    }
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* The facts of the model without its config.json against those with it. Returns what they differ in. */
static const char *compare_facts(const nw_model_info *a, const nw_model_info *b)
{
    if (!same_text(a->activation, b->activation))
        return "activation";
    if (a->relative_distance != b->relative_distance)
        return "distance";
    if (a->pad_id != b->pad_id || a->start_id != b->start_id || a->eos_id != b->eos_id)
        return "ids";
    bool sizes = a->vocab_size == b->vocab_size && a->d_model == b->d_model && a->d_kv == b->d_kv &&
                 a->d_ff == b->d_ff && a->heads == b->heads && a->relative_buckets == b->relative_buckets;
    bool structure = a->encoder_blocks == b->encoder_blocks && a->decoder_blocks == b->decoder_blocks &&
                     a->head_tied == b->head_tied && a->bias_per_block == b->bias_per_block;
    bool weights = a->parameters == b->parameters && a->weight_bytes == b->weight_bytes &&
                   a->decode_bytes == b->decode_bytes && a->encoder_bytes == b->encoder_bytes;
    return !sizes ? "sizes" : !structure ? "structure" : !weights ? "weights" : "";
}

/* Opens the weights without config.json, and compares what is inferred; where that cannot be all, opens them again with
 * --config. */
static nw_model *open_bare(const golden *g, const temp_dir *dir, const char *name, nw_error *err)
{
    static const char prefix[] = "text_encoders.t5xxl.transformer.";
    char              config[600];
    temp_path         path = bare_weights_link(dir, g->dir);
    if (repacked)
        path = bare_weights_repack(dir, path.text, prefix);
    snprintf(config, sizeof config, "%s/config.json", g->dir);
    nw_model     *whole = NULL, *bare = NULL;
    nw_model_info want, have;
    golden_need(nw_model_open(&(nw_model_options){.path = g->dir}, &whole, err) == NW_OK, name, err);
    golden_need(nw_model_open(&(nw_model_options){.path = path.text}, &bare, err) == NW_OK, name, err);
    nw_model_describe(whole, &want);
    nw_model_describe(bare, &have);
    const char *differs = "";
    for (size_t i = 0; i < sizeof not_inferred / sizeof *not_inferred; i++)
        differs = same_text(not_inferred[i].name, name) ? not_inferred[i].differs : differs;
    check(same_text(compare_facts(&have, &want), differs), name, compare_facts(&have, &want), 0);
    check(have.config_path == NULL && same_text(have.name_prefix, repacked ? prefix : ""), name, "prefix", 0);
    nw_model_close(whole);
    if (differs[0] == '\0')
        return bare;
    bare = nw_model_close(bare);
    golden_need(nw_model_open(&(nw_model_options){.path = path.text, .config = config}, &bare, err) == NW_OK, name,
                err);
    return bare;
}

static nw_model *open_packed(const golden *g, const temp_dir *dir, const char *name, nw_error *err)
{
    nw_model       *model = NULL;
    nw_pack_result  r;
    temp_path       path = temp_dir_path(dir, "pack");
    nw_pack_options o = {.dir = path.text, .compress = compress, .shard_bytes_max = 300000, .threads = 2};
    golden_need(nw_model_open(&(nw_model_options){.path = g->dir}, &model, err) == NW_OK, name, err);
    golden_need(nw_model_pack(model, &o, &r, err) == NW_OK, name, err);
    nw_model_close(model);
    golden_need(nw_model_open(&(nw_model_options){.path = path.text}, &model, err) == NW_OK, name, err);
    return model;
}

static nw_model *open_case(const golden *g, const temp_dir *dir, const char *name, nw_error *err)
{
    nw_model *model = NULL;
    if (inferred)
        return open_bare(g, dir, name, err);
    if (packed)
        return open_packed(g, dir, name, err);
    golden_need(nw_model_open(&(nw_model_options){.path = g->dir}, &model, err) == NW_OK, name, err);
    return model;
}

/* Encoder states, of a session that generates and of one that only encodes. */
static void test_states(golden *g, nw_session *const sessions[2], const char *name, size_t input, const uint32_t *ids,
                        size_t count)
{
    size_t dims[2];
    float *want = golden_tensor_of(g, "encoder_hidden", input, dims);
    float *states = malloc(dims[0] * dims[1] * sizeof *states);
    for (size_t i = 0; i < 2; i++) {
        nw_error err = {0};
        nw_code  rc = nw_session_encode(sessions[i], &(nw_encode_request){.ids = ids, .count = count}, states, &err);
        check(rc == NW_OK && dims[0] == count, name, "encode", input);
        check_floats(name, "encoder states of input", input, states, want, count * dims[1]);
    }
    free(want);
    free(states);
}

static void test_case(const char *name)
{
    golden      g = {0};
    nw_error    err = {0};
    nw_session *sessions[2] = {NULL, NULL}, *session;
    temp_dir    dir = temp_dir_make();
    golden_open(&g, name);
    nw_model     *model = open_case(&g, &dir, name, &err);
    nw_model_info info;
    nw_model_describe(model, &info);
    nw_session_options o = {
        .budget_bytes = 256 << 20, .max_input_tokens = 320, .max_output_tokens = 256, .threads = 2, .kernels = kernels};
    for (size_t i = 0; i < 2; i++) {
        o.encode_only = i == 1;
        golden_need(nw_session_open(model, &o, &sessions[i], &err) == NW_OK, name, &err);
    }
    session = sessions[0];

    size_t    dims[2], lens_dims[2];
    uint32_t *ids = golden_tensor(&g, "input_ids", dims);
    int32_t  *lens = golden_tensor(&g, "input_lens", lens_dims);
    for (size_t i = 0; i < dims[0]; i++) {
        const uint32_t *input = ids + i * dims[1];
        size_t          count = (size_t)lens[i];
        test_states(&g, sessions, name, i, input, count);
        if (info.decoder_blocks > 0)
            test_logits(&g, session, name, i, input, count);
    }
    const cJSON *e;
    size_t       greedy = 0;
    cJSON_ArrayForEach(e, cJSON_GetObjectItem(g.json, "generate"))
    {
        size_t input = (size_t)cJSON_GetObjectItem(e, "input")->valueint;
        if (is_plain_greedy(e)) {
            test_greedy(e, session, name, ids + input * dims[1], (size_t)lens[input]);
            greedy++;
        }
    }
    check(info.decoder_blocks == 0 || greedy > 0, name, "greedy entries", greedy);
    free(ids);
    free(lens);
    nw_session_close(sessions[0]);
    nw_session_close(sessions[1]);
    nw_model_close(model);
    golden_close(&g);
    temp_dir_remove(&dir);
}

int main(int argc, char **argv)
{
    inferred = argc > 1 && same_text(argv[1], "inferred");
    packed = argc > 1 && same_text(argv[1], "packed");
    kernels = argc > 1 && !inferred && !packed ? argv[1] : NULL;
    for (compress = NW_COMPRESS_PACKED; compress <= (packed ? NW_COMPRESS_SLIM : NW_COMPRESS_PACKED); compress++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            test_case(cases[i]);
    }
    repacked = true;
    for (size_t i = 0; inferred && i < sizeof cases / sizeof *cases; i++) {
        /* Not several files, whose index names them, and only safetensors are rewritten. */
        if (!same_text(cases[i], "flan-bf16-shards") && strncmp(cases[i], "bin", 3) != 0)
            test_case(cases[i]);
    }
    printf("%u checks, %u failed; largest difference %.2g (allowed %.2g)\n", checks, failures, worst, TOLERANCE);
    return failures == 0 ? 0 : 1;
}
