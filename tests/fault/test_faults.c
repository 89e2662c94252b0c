/* Any allocation and any read may fail: none leaks, lies or leaves half an answer. Fail point 1, then 2, and so on
 * until a run no longer reaches the armed point. A session that met a failed read, was stopped, or lost a file's tail
 * answers rightly again once the cause is gone. (That nothing is left allocated is checked by nw_model_close and
 * nw_session_close themselves.)
 */
#include "answers.h"
#include "bare_weights.h"
#include "many_tiles.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#ifdef NW_SANITIZED
enum { READ_STRIDE = 7 };
#else
enum { READ_STRIDE = 1 };
#endif
enum { POINTS_MAX = 100000 };

static unsigned failures;
static bool     kv_on_disk; /* sessions keep K and V in a scratch file, in tiles of at most so many bytes */
static size_t   kv_tile_bytes;

static void check(bool ok, const char *what, uint64_t point, const char *detail)
{
    if (!ok && failures++ < 20)
        printf("FAILED %s at %llu: %s\n", what, (unsigned long long)point, detail);
}

/* A model and a session over hooks, open at once. */
typedef struct {
    nw_model   *model;
    nw_session *session;
    size_t      vocab;
} pair;

static nw_code open_pair(const char *dir, nw_hooks *hooks, const subject *s, uint64_t budget, pair *ret, nw_error *err)
{
    *ret = (pair){0};
    nw_code rc = nw_model_open(&(nw_model_options){.path = dir, .hooks = hooks}, &ret->model, err);
    if (rc != NW_OK)
        return rc;
    nw_model_info info;
    nw_model_describe(ret->model, &info);
    ret->vocab = info.vocab_size;
    nw_session_options o = {.budget_bytes = budget,
                            .max_input_tokens = s->longest,
                            .max_output_tokens = s->tokens,
                            .max_lanes = 2,
                            .threads = 2,
                            .kv_on_disk = kv_on_disk,
                            .force = true};
    return nw_session_open(ret->model, &o, &ret->session, err);
}

static void close_pair(pair *p)
{
    nw_session_close(p->session);
    nw_model_close(p->model);
}

/* Text to ids, a session, an answer. */
static nw_code whole_run(const char *dir, nw_hooks *hooks, const subject *s, uint64_t *ret_hash, nw_error *err)
{
    static const char text[] = "translate digits to German: 1984";
    uint32_t          ids[64];
    size_t            count, tokens;
    pair              p = {0};
    nw_code           rc = nw_model_open(&(nw_model_options){.path = dir, .hooks = hooks}, &p.model, err);
    if (rc == NW_OK)
        rc = nw_model_encode_text(p.model, text, sizeof text - 1, ids, 64, &count, err);
    p.model = nw_model_close(p.model);
    if (rc == NW_OK)
        rc = open_pair(dir, hooks, s, 256 << 20, &p, err);
    if (rc == NW_OK)
        rc = answer_generate(p.session, s, 0, p.vocab, ret_hash, &tokens, err);
    close_pair(&p);
    return rc;
}

static void test_every_allocation(const subject *s)
{
    uint64_t want = 0, point = 0;
    nw_error err = {0};
    check(whole_run(s->dir, NULL, s, &want, &err) == NW_OK, "the run itself", 0, err.msg);
    for (point = 1; point < POINTS_MAX; point++) {
        nw_memory_fault fault = {.fail_at = point};
        nw_hooks        hooks = {.memory = &fault};
        /* The account counts from each model's and session's start; the fault counts on through all of them. */
        uint64_t hash = 0;
        err = (nw_error){0};
        nw_code rc = whole_run(s->dir, &hooks, s, &hash, &err);
        if (!fault.fired) {
            check(rc == NW_OK && hash == want, "allocation", point, err.msg);
            break;
        }
        check(rc == NW_E_MEMORY || rc == NW_E_BUDGET, "allocation: code", point, err.msg);
        check(err.msg[0] != '\0' && strchr(err.msg, '\n') == NULL && hash == 0, "allocation: message", point, err.msg);
    }
    printf("%llu allocations failed in turn\n", (unsigned long long)point - 1);
    check(point > 50 && point < POINTS_MAX, "number of allocations", point, "");
}

/* A weights file alone, under a prefix: its configuration inferred, its tokenizer looked for in vain. */
static void test_bare_allocations(const subject *s, const temp_dir *temp)
{
    char from[1100];
    snprintf(from, sizeof from, "%s/model.safetensors", s->dir);
    temp_path file = bare_weights_repack(temp, from, "text_encoders.t5xxl.");
    uint64_t  point;
    for (point = 1; point < POINTS_MAX; point++) {
        nw_memory_fault   fault = {.fail_at = point};
        nw_hooks          hooks = {.memory = &fault};
        nw_error          err = {0};
        nw_model         *model = NULL;
        nw_tokenizer_info tokenizer = {0};
        nw_code           rc = nw_model_open(&(nw_model_options){.path = file.text, .hooks = &hooks}, &model, &err);
        if (rc == NW_OK)
            rc = nw_model_tokenizer_describe(model, &tokenizer, &err);
        if (!fault.fired)
            check(rc == NW_OK && tokenizer.problem != NULL, "bare file", point, err.msg);
        else
            check((rc == NW_E_MEMORY || rc == NW_E_BUDGET) && err.msg[0] != '\0', "bare file: code", point, err.msg);
        nw_model_close(model);
        if (!fault.fired)
            break;
    }
    check(point > 20 && point < POINTS_MAX, "number of allocations of a bare file", point, "");
}

static bool names_a_file(const char *msg)
{
    return strstr(msg, ".safetensors") != NULL || strstr(msg, ".nwp") != NULL || strstr(msg, "tiles.idx") != NULL ||
           strstr(msg, ".json") != NULL || strstr(msg, "spiece.model") != NULL || strstr(msg, "scratch file") != NULL;
}

/* One read fails for good: in opening, in the vectors, in a pass. A session that is open must answer rightly
 * afterwards. */
static bool one_read_failing(const subject *s, uint64_t budget, uint64_t point, int os_errno, uint64_t want)
{
    nw_io_fake fake = {.seed = point, .short_percent = 10, .fail_at = point, .fail_errno = os_errno};
    nw_hooks   hooks = {.io = &fake, .kv_tile_bytes = kv_tile_bytes};
    nw_error   err = {0};
    pair       p;
    uint64_t   hash = 0;
    size_t     tokens;
    nw_code    rc = open_pair(s->dir, &hooks, s, budget, &p, &err);
    bool       opened = rc == NW_OK;
    if (opened)
        rc = answer_generate(p.session, s, 0, p.vocab, &hash, &tokens, &err);
    if (!fake.fired) {
        check(rc == NW_OK && hash == want, "read", point, err.msg);
    } else { /* an answer of full length needs every read: nothing is read ahead of the last pass, so none fails unseen
              */
        bool own = strstr(err.msg, "scratch file") != NULL; /* which is never cut short by anyone else's fault */
        check(rc == (os_errno == NW_IO_EOF && !own ? NW_E_FORMAT : NW_E_IO), "read: code", point, err.msg);
        check(names_a_file(err.msg) && hash == 0, "read: message", point, err.msg);
    }
    if (fake.fired && opened) {
        rc = answer_generate(p.session, s, 0, p.vocab, &hash, &tokens, &err);
        check(rc == NW_OK && hash == want, "answer after a failed read", point, err.msg);
    }
    close_pair(&p);
    return fake.fired;
}

/* All from the operation `first` on. */
static void test_every_read(const subject *s, uint64_t budget, uint64_t want, uint64_t first)
{
    uint64_t point = first;
    for (; point < POINTS_MAX; point += READ_STRIDE) {
        bool fired = one_read_failing(s, budget, point, EIO, want);
        one_read_failing(s, budget, point, NW_IO_EOF, want);
        if (!fired)
            break;
    }
    printf("%llu reads failed in turn\n", (unsigned long long)(point - first));
    check(point - first > 50 && point < POINTS_MAX, "number of reads", point, "");
}

/* An answer of several pages whose first ones are written to the scratch file and read from it: the operations of its
 * last passes, in a session that reads nothing else then. */
static void test_answer_on_disk(const subject *model)
{
    enum { LAST = 100 };
    const uint64_t budget = 256 << 20;
    nw_io_fake     fake = {.seed = 1};
    nw_hooks       hooks = {.io = &fake};
    nw_error       err = {0};
    pair           p;
    uint64_t       memory = 0, disk = 0;
    size_t         tokens;
    subject        s = *model;
    s.tokens = 9;
    check(open_pair(s.dir, NULL, &s, budget, &p, &err) == NW_OK, "open", 0, err.msg);
    check(answer_generate(p.session, &s, 0, p.vocab, &memory, &tokens, &err) == NW_OK, "in memory", 0, err.msg);
    close_pair(&p);
    kv_on_disk = true;
    kv_tile_bytes = hooks.kv_tile_bytes = 2048; /* two rows */
    check(open_pair(s.dir, &hooks, &s, budget, &p, &err) == NW_OK, "open", 1, err.msg);
    check(answer_generate(p.session, &s, 0, p.vocab, &disk, &tokens, &err) == NW_OK, "on disk", 0, err.msg);
    check(disk == memory && tokens == s.tokens, "answer", tokens, "K and V on disk");
    close_pair(&p);
    check(fake.ops_seen > LAST, "number of operations", fake.ops_seen, "");
    test_every_read(&s, budget, memory, fake.ops_seen - LAST);
    kv_on_disk = false;
    kv_tile_bytes = 0;
}

/* ---- a session that only encodes ---- */

/* Three texts, the first two saying that another follows. */
static nw_code encode_texts(nw_session *session, const subject *s, size_t d_model, uint64_t *ret_hash, nw_error *err)
{
    uint64_t hash = ANSWERS_SEED;
    nw_code  rc = NW_OK;
    float   *states = malloc(s->longest * d_model * sizeof *states);
    for (size_t i = 0; i < 3 && rc == NW_OK; i++) {
        size_t            p = i % s->prompt_count;
        nw_encode_request q = {.ids = s->ids[p], .count = s->counts[p], .more = i < 2};
        rc = nw_session_encode(session, &q, states, err);
        hash = answers_mix(hash, states, q.count * d_model * sizeof *states);
    }
    if (rc == NW_OK)
        *ret_hash = hash;
    free(states);
    return rc;
}

/* Opens such a session and encodes; with `again`, twice, whatever came of the first time. */
static nw_code encode_run(const subject *s, nw_hooks *hooks, uint64_t budget, bool again, uint64_t *ret_hash,
                          nw_error *err)
{
    nw_model     *model = NULL;
    nw_session   *session = NULL;
    nw_model_info info;
    nw_code       rc = nw_model_open(&(nw_model_options){.path = s->dir, .hooks = hooks}, &model, err);
    if (rc == NW_OK) {
        nw_session_options o = {
            .budget_bytes = budget, .max_input_tokens = s->longest, .threads = 2, .force = true, .encode_only = true};
        nw_model_describe(model, &info);
        rc = nw_session_open(model, &o, &session, err);
    }
    bool opened = rc == NW_OK;
    if (opened)
        rc = encode_texts(session, s, info.d_model, ret_hash, err);
    if (opened && again && rc != NW_OK) {
        nw_error ignored = {0};
        check(*ret_hash == 0, "states after a failed read", 0, err->msg);
        check(encode_texts(session, s, info.d_model, ret_hash, &ignored) == NW_OK, "encoding after a failed read", 0,
              ignored.msg);
    }
    nw_session_close(session);
    nw_model_close(model);
    return rc;
}

static void test_encoding(const subject *s, uint64_t budget)
{
    uint64_t want = 0, point = 1;
    nw_error err = {0};
    check(encode_run(s, NULL, 256 << 20, false, &want, &err) == NW_OK, "encoding itself", 0, err.msg);
    for (; point < POINTS_MAX; point += READ_STRIDE) {
        nw_io_fake fake = {.seed = point, .short_percent = 10, .delay_max = 3, .fail_at = point, .fail_errno = EIO};
        nw_hooks   hooks = {.io = &fake};
        uint64_t   hash = 0;
        nw_code    rc = encode_run(s, &hooks, budget, true, &hash, &err);
        check(rc == (fake.fired ? NW_E_IO : NW_OK), "encoding: code", point, err.msg);
        check(!fake.fired || names_a_file(err.msg), "encoding: message", point, err.msg);
        check(hash == want || hash == 0, "encoding: other bits", point, "");
        if (!fake.fired)
            break;
    }
    printf("%llu reads failed in turn, encoding\n", (unsigned long long)point - 1);
    check(point > 20 && point < POINTS_MAX, "number of reads, encoding", point, "");
    for (point = 1; point < POINTS_MAX; point++) {
        nw_memory_fault fault = {.fail_at = point};
        nw_hooks        hooks = {.memory = &fault};
        uint64_t        hash = 0;
        nw_code         rc = encode_run(s, &hooks, budget, false, &hash, &err);
        check(fault.fired ? rc == NW_E_MEMORY || rc == NW_E_BUDGET : rc == NW_OK && hash == want,
              "allocation, encoding", point, err.msg);
        if (!fault.fired)
            break;
    }
    check(point > 30 && point < POINTS_MAX, "number of allocations, encoding", point, "");
}

/* ---- stopping ---- */

static void *stop_soon(void *session)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    nw_session_stop(session);
    return NULL;
}

typedef struct {
    nw_session    *session;
    const subject *s;
    answer_reader  first, second;
    size_t         tokens_before_end; /* false is returned at this token; SIZE_MAX: never */
    bool           cancel, submit_next;
    uint64_t       id;
} watcher;

static bool watch_second(void *user, const nw_token *t)
{
    return answer_read(&((watcher *)user)->second, t);
}

static bool watch(void *user, const nw_token *t)
{
    watcher *w = user;
    answer_read(&w->first, t);
    if (w->cancel)
        nw_session_cancel(w->session, t->request);
    if (w->submit_next && t->finish != NW_FINISH_NONE) {
        nw_request q = answer_request(w->s, 1, NULL);
        nw_error   err = {0};
        q.on_token = watch_second;
        q.user = w;
        check(nw_session_submit(w->session, &q, &w->id, &err) == NW_OK, "submit from on_token", 0, err.msg);
    }
    return t->index + 1 < w->tokens_before_end;
}

static watcher watch_run(pair *p, const subject *s, watcher w)
{
    size_t     live = 1;
    uint64_t   id;
    nw_error   err = {0};
    nw_request q = answer_request(s, 0, NULL);
    w.session = p->session;
    w.s = s;
    w.first = w.second = (answer_reader){.hash = ANSWERS_SEED, .vocab = p->vocab};
    q.on_token = watch;
    q.user = &w;
    nw_code rc = nw_session_submit(p->session, &q, &id, &err);
    while (rc == NW_OK && live > 0)
        rc = nw_session_step(p->session, &live, &err);
    check(rc == NW_OK, "a watched run", 0, err.msg);
    return w;
}

static void test_stopping(const subject *s, const uint64_t *want)
{
    nw_error err = {0};
    pair     p;
    uint64_t hash = 0;
    size_t   tokens = 0;
    check(open_pair(s->dir, NULL, s, 40 << 20, &p, &err) == NW_OK, "open", 0, err.msg);

    nw_session_stop(p.session);
    check(answer_generate(p.session, s, 0, p.vocab, &hash, &tokens, &err) == NW_E_CANCELLED, "stopped before", 0, "");
    check(answer_generate(p.session, s, 0, p.vocab, &hash, &tokens, &err) == NW_OK && hash == want[0], "after stop", 0,
          "");

    for (unsigned i = 0; i < 10; i++) {
        pthread_t thread;
        nw_code   rc = NW_OK;
        check(pthread_create(&thread, NULL, stop_soon, p.session) == 0, "thread", i, "");
        while (rc == NW_OK)
            rc = answer_generate(p.session, s, i % 2, p.vocab, &hash, &tokens, &err);
        check(rc == NW_E_CANCELLED, "stopped from a thread", i, err.msg);
        pthread_join(thread, NULL);
        rc = answer_generate(p.session, s, i % 2, p.vocab, &hash, &tokens, &err);
        check(rc == NW_OK && hash == want[i % 2], "after a stop from a thread", i, err.msg);
    }

    watcher w = watch_run(&p, s, (watcher){.tokens_before_end = 1});
    check(w.first.tokens == 1, "on_token gave false", 0, "more tokens came");
    w = watch_run(&p, s, (watcher){.tokens_before_end = SIZE_MAX, .cancel = true});
    check(w.first.tokens == 1, "cancelled in on_token", 0, "more tokens came");
    w = watch_run(&p, s, (watcher){.tokens_before_end = SIZE_MAX, .submit_next = true});
    check(w.first.hash == want[0] && w.second.hash == want[1], "submitted in on_token", 0, "other bits");
    close_pair(&p);
}

/* ---- files that change underneath ---- */

static void test_truncated(const char *dir, const subject *s)
{
    nw_error err = {0};
    pair     p;
    uint64_t hash = 0;
    size_t   tokens;
    char     path[1200];
    check(open_pair(dir, NULL, s, 40 << 20, &p, &err) == NW_OK, "open", 0, err.msg);
    for (size_t i = 0;; i++) {
        uint64_t    bytes;
        const char *file = nw_model_file(p.model, i, &bytes);
        if (file == NULL)
            break;
        snprintf(path, sizeof path, "%s", file);
        check(truncate(path, (off_t)(bytes / 2)) == 0, "truncate", i, path);
    }
    nw_code rc = answer_generate(p.session, s, 0, p.vocab, &hash, &tokens, &err);
    check(rc == NW_E_FORMAT && strstr(err.msg, "cut short") != NULL && hash == 0, "a file cut while open", 0, err.msg);
    close_pair(&p);
}

/* A weight is overwritten in place between opening the model and the session: same size, other bytes. */
static void test_changed(const char *dir, const subject *s)
{
    nw_error    err = {0};
    nw_model   *model = NULL;
    nw_session *session = NULL;
    uint64_t    bytes;
    check(nw_model_open(&(nw_model_options){.path = dir}, &model, &err) == NW_OK, "open", 0, err.msg);
    const char *path = nw_model_file(model, 0, &bytes);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* past the clock tick that file times are kept in */
    FILE *f = fopen(path, "r+b");
    bool  written = f != NULL && fseek(f, -1, SEEK_END) == 0 && fputc(1, f) != EOF;
    check(f != NULL && fclose(f) == 0 && written, "overwrite", 0, path);
    nw_session_options o = {.budget_bytes = 64 << 20,
                            .max_input_tokens = s->longest,
                            .max_output_tokens = s->tokens,
                            .threads = 1,
                            .force = true};
    nw_code            rc = nw_session_open(model, &o, &session, &err);
    check(rc == NW_E_IO && session == NULL && strstr(err.msg, path) != NULL, "a file changed before the session", 0,
          err.msg);
    nw_session_close(session);
    nw_model_close(model);
}

/* ---- packs ---- */

/* The same of a pack of a model: what a failed read or allocation leaves is no other answer. */
static void test_pack(const subject *checkpoint, const temp_dir *temp, uint64_t want)
{
    static const nw_compress forms[] = {NW_COMPRESS_PACKED, NW_COMPRESS_SLIM};
    for (size_t i = 0; i < 2; i++) {
        subject         s = *checkpoint;
        temp_path       path = temp_dir_path(temp, i == 0 ? "packed" : "slim");
        nw_pack_options o = {.dir = path.text, .compress = forms[i], .shard_bytes_max = 4 << 20, .threads = 2};
        nw_pack_result  r;
        nw_error        err = {0};
        check(model_pack(s.dir, &o, NULL, &r, &err) == NW_OK, "packing", i, err.msg);
        snprintf(s.dir, sizeof s.dir, "%s", path.text);
        test_every_read(&s, 40 << 20, want, 1);
        test_encoding(&s, 30 << 20);
    }
}

static void test_pack_allocations(const subject *checkpoint, const temp_dir *temp)
{
    subject        s = *checkpoint;
    temp_path      path = temp_dir_path(temp, "numbers");
    nw_pack_result r;
    nw_error       err = {0};
    nw_code        rc = model_pack(s.dir, &(nw_pack_options){.dir = path.text, .threads = 2}, NULL, &r, &err);
    check(rc == NW_OK, "packing", 0, err.msg);
    snprintf(s.dir, sizeof s.dir, "%s", path.text);
    test_every_allocation(&s);
}

int main(void)
{
    subject numbers = {.name = "numbers-t5", .tokens = 3};
    snprintf(numbers.dir, sizeof numbers.dir, "%s/numbers-t5", NW_TEST_DATA);
    subject_add(&numbers, 18, 640, 1);
    test_every_allocation(&numbers);

    temp_dir temp = temp_dir_make();
    test_bare_allocations(&numbers, &temp);
    test_pack_allocations(&numbers, &temp);
    temp_path dir = temp_dir_path(&temp, "model");
    many_tiles_write(dir.text, false, 5);
    subject many = {.name = "many tiles", .tokens = 3};
    snprintf(many.dir, sizeof many.dir, "%s", dir.text);
    subject_add(&many, 20, MANY_TILES_VOCAB, 1);
    subject_add(&many, 7, MANY_TILES_VOCAB, 2);
    uint64_t want[2] = {0};
    size_t   tokens;
    nw_error err = {0};
    pair     p;
    check(open_pair(many.dir, NULL, &many, 256 << 20, &p, &err) == NW_OK, "open", 0, err.msg);
    for (size_t i = 0; i < 2; i++)
        check(answer_generate(p.session, &many, i, p.vocab, &want[i], &tokens, &err) == NW_OK, "reference", i, err.msg);
    close_pair(&p);

    test_every_read(&many, 40 << 20, want[0], 1);  /* some pins, a window that moves */
    test_every_read(&many, 256 << 20, want[0], 1); /* all resident: pins are read far ahead, over the seam */
    kv_on_disk = true;
    test_every_read(&many, 40 << 20, want[0], 1); /* and every write */
    kv_on_disk = false;
    test_answer_on_disk(&many);
    test_encoding(&many, 30 << 20);
    test_encoding(&many, 256 << 20);
    test_pack(&many, &temp, want[0]);
    test_stopping(&many, want);
    test_changed(many.dir, &many);
    test_truncated(many.dir, &many);
    temp_dir_remove(&temp);
    printf("%u failed\n", failures);
    return failures == 0 ? 0 : 1;
}
