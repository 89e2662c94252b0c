/* The plan at full size, with no model on the disk: a checkpoint's headers are real, its data a hole in a sparse file.
 * Sizes follow from the shape, more budget never reads more, the answer comes at once, and a process that only plans
 * stays small. */
#include "child.h"
#include "model_state.h"
#include "plan.h"
#include "temp_dir.h"

#include <inttypes.h>
#include <time.h>

typedef struct {
    const char *name, *feed_forward;
    uint32_t    vocab, d_model, d_kv, d_ff, heads, blocks;
    bool        tied;
    uint64_t    weights;      /* published */
    uint64_t    smallest_max; /* of a budget for 64 tokens in and out, one lane, two threads */
} shape;

/* The smallest budget is a window of two tiles and what a token needs: it must not depend on how large the model is. */
static const shape shapes[] = {
    {"flan-t5-xl", "gated-gelu", 32128, 2048, 64, 5120, 32, 24, false, 2849757184, (uint64_t)96 << 20},
    {"flan-t5-xxl", "gated-gelu", 32128, 4096, 64, 10240, 64, 24, false, 11135332352, (uint64_t)160 << 20},
    {"ul2", "gated-silu", 32128, 4096, 256, 16384, 16, 32, true, 19459613696, (uint64_t)192 << 20},
};

/* Writes the header and makes the file as long as its data would be. */
static void write_sparse(const temp_dir *dir, const nw_config *c, const char *config)
{
    nw_tensors      tensors;
    uint32_t        count = nw_tensors_count(c);
    nw_tensor_need *list = calloc(count, sizeof *list);
    size_t          cap = (size_t)count * 256, used = 8;
    char           *header = malloc(cap);
    uint64_t        at = 0;
    nw_tensors_fill(c, list, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        char     name[128], dims[64];
        uint64_t bytes = list[i].rows * list[i].cols * 2;
        NW_CHECK(nw_tensor_name(c, &list[i], 0, name, sizeof name));
        if (list[i].vector && list[i].role != NW_ROLE_BIAS)
            snprintf(dims, sizeof dims, "%" PRIu64, list[i].cols);
        else
            snprintf(dims, sizeof dims, "%" PRIu64 ",%" PRIu64, list[i].rows, list[i].cols);
        used +=
            (size_t)snprintf(header + used, cap - used,
                             "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                             i == 0 ? '{' : ',', name, dims, at, at + bytes);
        at += bytes;
    }
    header[used++] = '}';
    while (used % 8 != 0)
        header[used++] = ' ';
    uint64_t length = used - 8;
    memcpy(header, &length, 8);
    temp_path file = temp_dir_write(dir, "model.safetensors", header, used);
    NW_CHECK(truncate(file.text, (off_t)(used + at)) == 0);
    temp_dir_write(dir, "config.json", config, strlen(config));
    free(header);
    free(list);
}

static void make_model(const temp_dir *dir, const shape *s)
{
    char      json[512];
    nw_memory mem;
    nw_config c;
    nw_error  err = {0};
    snprintf(json, sizeof json,
             "{\"model_type\":\"t5\",\"vocab_size\":%u,\"d_model\":%u,\"d_kv\":%u,\"d_ff\":%u,\"num_heads\":%u,"
             "\"num_layers\":%u,\"feed_forward_proj\":\"%s\",\"tie_word_embeddings\":%s}",
             s->vocab, s->d_model, s->d_kv, s->d_ff, s->heads, s->blocks, s->feed_forward, s->tied ? "true" : "false");
    nw_memory_init(&mem, UINT64_MAX, NULL);
    NW_CHECK(nw_config_parse(&mem, "config.json", json, strlen(json), &c, &err) == NW_OK);
    write_sparse(dir, &c, json);
}

typedef struct {
    const shape *s;
    const char  *dir;
} plan_case;

static uint64_t parts_total(const nw_plan *p)
{
    return p->part.process + p->part.threads + p->part.io + p->part.tokenizer + p->part.index + p->part.vectors +
           p->part.kv_self + p->part.kv_cross + p->part.activations + p->part.window + p->part.pins + p->part.reserve;
}

static nw_session_options usual(uint64_t budget)
{
    return (nw_session_options){
        .budget_bytes = budget, .max_input_tokens = 64, .max_output_tokens = 64, .max_lanes = 1, .threads = 2};
}

/* Of this process: what others do on the machine does not count. */
static double milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* What the files say, and how fast and how small it is to say it. */
static int describe_child(void *user)
{
    const plan_case *k = user;
    nw_error         err = {0};
    nw_model        *model = NULL;
    nw_plan          plan;
    nw_model_info    info;
    nw_process_setup();
    double start = milliseconds();
    EXPECT(nw_model_open(&(nw_model_options){.path = k->dir}, &model, &err) == NW_OK);
    nw_session_options o = usual((uint64_t)1 << 30);
    EXPECT(nw_plan_make(model, &o, &plan, &err) == NW_OK);
    double taken = milliseconds() - start;
    nw_model_describe(model, &info);
    EXPECT(info.parameters == k->s->weights && info.weight_bytes == 2 * k->s->weights);
    EXPECT(info.head_tied == k->s->tied);
    printf("%s: smallest %.1f MiB, all resident %.0f MiB, %.1f ms, peak %.1f MiB\n", k->s->name,
           (double)plan.smallest / 1048576, (double)plan.budget_all_resident / 1048576, taken,
           (double)nw_process_peak() / 1048576);
    fflush(stdout);
#if !defined(NW_SANITIZED) && !defined(NW_TEST_EMULATOR) /* whose time and memory count here too */
    EXPECT(taken < 100);
    EXPECT(nw_process_peak() < (uint64_t)16 << 20);
#endif
    nw_model_close(model);
    return 0;
}

/* One budget: where it goes, and what a later pass reads. */
static int check_budget(nw_model *model, uint64_t budget, nw_plan *ret)
{
    nw_error           err = {0};
    nw_session_options o = usual(budget);
    EXPECT(nw_plan_make(model, &o, ret, &err) == NW_OK);
    EXPECT(ret->budget == budget && parts_total(ret) <= budget);
    EXPECT(ret->slot_count >= 2 && ret->part.window >= ret->slot_count * ret->slot_bytes);
    /* A tile has at most 2^20 weights of two bytes; what it lies in is read from and to whole pages. */
    EXPECT(ret->slot_bytes <= (2 << 20) + 2 * 65536);
    EXPECT(ret->pinned_bytes <= ret->part.pins && ret->part.encode <= ret->part.pins);
    EXPECT(ret->read.next_pass <= ret->read.first_pass && ret->read.refill <= ret->read.first_pass);
    EXPECT(ret->read.ahead <= ret->read.next_pass);
    return 0;
}

static int budgets_child(void *user)
{
    const plan_case *k = user;
    nw_error         err = {0};
    nw_model        *model = NULL;
    nw_model_info    info;
    nw_plan          plan, before;
    EXPECT(nw_model_open(&(nw_model_options){.path = k->dir}, &model, &err) == NW_OK);
    nw_model_describe(model, &info);
    nw_session_options o = usual(4096);
    EXPECT(nw_plan_make(model, &o, &before, &err) == NW_E_BUDGET);
    EXPECT(err.bytes_needed == before.smallest && before.smallest <= k->s->smallest_max);
    uint64_t smallest = before.smallest, all = before.budget_all_resident;
    o.budget_bytes = smallest - 4096;
    EXPECT(nw_plan_make(model, &o, &plan, &err) == NW_E_BUDGET);
    int line = check_budget(model, smallest, &before);
    for (uint64_t budget = smallest; line == 0 && budget < all + (all >> 2); budget += budget / 64) {
        line = check_budget(model, budget & ~(uint64_t)4095, &plan);
        /* Where K and V come into memory, pins leave it: never for more than 2 % more to read. */
        bool     moved = plan.kv_on_disk != before.kv_on_disk;
        uint64_t read = plan.read.next_pass + plan.read.kv, read_before = before.read.next_pass + before.read.kv;
        EXPECT(line != 0 || read <= read_before + (moved ? read_before / 50 : 0));
        EXPECT(line != 0 || plan.seconds_per_token <= before.seconds_per_token * (moved ? 1.02 : 1));
        before = plan;
    }
    EXPECT(line == 0 || (printf("check_budget: %d\n", line), false));
    EXPECT(before.read.next_pass == 0 && before.pinned_tiles == before.pass_tiles);
    EXPECT(check_budget(model, all, &plan) == 0 && plan.read.next_pass == 0);
    EXPECT(check_budget(model, all - (4 << 20), &plan) == 0 && plan.read.next_pass > 0);
    /* First and later passes read the weights, and the alignment around each tile, once. */
    EXPECT(plan.read.first_pass >= info.decode_bytes &&
           plan.read.first_pass <= info.decode_bytes + info.decode_bytes / 64);
    EXPECT(plan.read.encode >= info.encoder_bytes && plan.read.encode <= info.encoder_bytes + info.encoder_bytes / 64);
    nw_model_close(model);
    return 0;
}

/* More of anything never needs less. */
static int maxima_child(void *user)
{
    const plan_case *k = user;
    nw_error         err = {0};
    nw_model        *model = NULL;
    nw_plan          base, plan;
    EXPECT(nw_model_open(&(nw_model_options){.path = k->dir}, &model, &err) == NW_OK);
    nw_session_options o = usual((uint64_t)1 << 40);
    EXPECT(nw_plan_make(model, &o, &base, &err) == NW_OK);
    for (int i = 0; i < 5; i++) {
        nw_session_options more = o;
        switch (i) {
        case 0: more.max_input_tokens = 512; break;
        case 1: more.max_output_tokens = 512; break;
        case 2: more.max_lanes = 8; break;
        case 3: more.threads = 16; break;
        default: more.window_bytes = 64 << 20; break;
        }
        EXPECT(nw_plan_make(model, &more, &plan, &err) == NW_OK);
        EXPECT(plan.smallest > base.smallest && plan.budget_all_resident >= base.budget_all_resident);
    }
    o.max_lanes = 1025;
    EXPECT(nw_plan_make(model, &o, &plan, &err) == NW_E_ARG);
    o = usual((uint64_t)1 << 40);
    o.max_input_tokens = SIZE_MAX / 2;
    EXPECT(nw_plan_make(model, &o, &plan, &err) == NW_E_ARG);
    nw_model_close(model);
    return 0;
}

/* Places of pins: inside the region, at whole pages, without overlap, spread over the schedule. */
static int pins_child(void *user)
{
    const plan_case *k = user;
    nw_error         err = {0};
    nw_model        *model = NULL;
    nw_blueprint     b;
    EXPECT(nw_model_open(&(nw_model_options){.path = k->dir}, &model, &err) == NW_OK);
    nw_session_options o = usual((uint64_t)1 << 30);
    EXPECT(nw_blueprint_make(model, &o, 0, &b, &err) == NW_OK);
    EXPECT(b.pin_count == model->step_count[NW_PASS_DECODE] && b.pin_count > 500);
    uint64_t total = 0;
    size_t   pinned = 0, run = 0, longest = 0;
    for (size_t i = 0; i < b.pin_count; i++) {
        uint64_t bytes =
            nw_pin_shape_of(model, &b.shape.pinning, false, model->steps[NW_PASS_DECODE][i], b.shape.align).bytes;
        run = b.pin_at[i] == NW_NOT_PINNED ? run + 1 : 0;
        longest = run > longest ? run : longest;
        if (b.pin_at[i] == NW_NOT_PINNED)
            continue;
        EXPECT(b.pin_at[i] % b.shape.align == 0 && b.pin_at[i] + bytes <= b.shape.region_bytes);
        for (size_t j = 0; j < i; j += 1 + i / 64) {
            uint64_t other =
                nw_pin_shape_of(model, &b.shape.pinning, false, model->steps[NW_PASS_DECODE][j], b.shape.align).bytes;
            EXPECT(b.pin_at[j] == NW_NOT_PINNED || b.pin_at[j] + other <= b.pin_at[i] ||
                   b.pin_at[i] + bytes <= b.pin_at[j]);
        }
        total += bytes;
        pinned++;
    }
    EXPECT(pinned == b.plan.pinned_tiles && total == b.plan.pinned_bytes && pinned > 0 && pinned < b.pin_count);
    /* Spread evenly: no gap is much longer than the mean one. */
    EXPECT(longest <= 4 * (b.pin_count / pinned + 1));
    nw_blueprint_free(model, &b);
    EXPECT(model->memory.tag_live[NW_TAG_SESSION] == 0);
    nw_model_close(model);
    return 0;
}

int main(void)
{
    static const struct {
        const char *name;
        int (*fn)(void *);
    } tests[] = {
        {"describe", describe_child}, {"budgets", budgets_child}, {"maxima", maxima_child}, {"pins", pins_child}};
    unsigned failures = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        temp_dir  dir = temp_dir_make();
        plan_case k = {.s = &shapes[i], .dir = dir.path};
        make_model(&dir, &shapes[i]);
        for (size_t t = 0; t < sizeof tests / sizeof *tests; t++) {
            fflush(stdout);
            int line = in_child(tests[t].fn, &k);
            if (line != 0)
                printf("FAILED %s, %s: line %% 251 + 1 = %d\n", shapes[i].name, tests[t].name, line);
            failures += line != 0 ? 1 : 0;
        }
        temp_dir_remove(&dir);
    }
    return failures == 0 ? 0 : 1;
}
