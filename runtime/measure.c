/* What a session's disk and memory can do at best, measured by its own reader and its own workers: the limits that
 * passes are held against. */
#include "session_state.h"
#include "system.h"

typedef struct {
    nw_session    *session;
    const nw_tile *tile;
} strip_job;

static void take_strip(void *ctx, size_t i, size_t worker)
{
    const strip_job *j = ctx;
    nw_rows          rows;
    (void)nw_window_strip(&j->session->window, j->tile, i, worker, &rows); /* release says what is wrong */
}

/* A tile that is only read. What fills a pin of another form has to be restored all the same. */
static nw_code skip_tile(nw_session *s, const nw_tile *tile, nw_error *err)
{
    strip_job j = {.session = s, .tile = tile};
    if (!nw_window_fills_pin(&s->window)) {
        nw_window_release(&s->window, NW_TILE_UNUSED);
        return NW_OK;
    }
    nw_workers_run(s->workers, take_strip, &j, (size_t)tile->strips);
    return nw_session_release_tiles(s, err);
}

nw_code nw_session_read_pass(nw_session *s, uint64_t *ret_bytes, double *ret_seconds, nw_error *err)
{
    const nw_model *m = s->model;
    nw_pass         pass = s->blueprint.shape.pinned;
    uint64_t        before = s->window.bytes_read;
    double          start = nw_system_seconds();
    nw_code         rc = nw_session_check_idle(s, err);
    if (rc != NW_OK)
        return rc;
    nw_session_enter(s);
    nw_session_list_kv(s);
    nw_session_begin(s, pass, pass);
    for (size_t i = 0; i < m->step_count[pass] && rc == NW_OK; i++) {
        nw_tile tile;
        while (rc == NW_OK && nw_window_at_kv(&s->window))
            rc = nw_window_kv_skip(&s->window, err);
        if (rc == NW_OK)
            rc = nw_window_acquire(&s->window, m->steps[pass][i].tensor, m->steps[pass][i].tile, &tile, err);
        if (rc == NW_OK)
            rc = skip_tile(s, &tile, err);
    }
    if (rc == NW_OK)
        rc = nw_window_finish(&s->window, err);
    if (rc != NW_OK)
        return nw_session_fail(s, rc);
    nw_session_leave(s);
    *ret_seconds = nw_system_seconds() - start;
    *ret_bytes = s->window.bytes_read - before;
    return NW_OK;
}

/* Eight streams side by side, as products have rows: one alone does not bring a core to its share of the memory's rate.
 */
typedef struct {
    const unsigned char *bytes;
    uint64_t             sums[256]; /* [worker]; written so that the loads are not optimised away */
} rate_job;

enum { RATE_PIECE = 1 << 20, RATE_STREAMS = 8, RATE_STRIDE = RATE_PIECE / RATE_STREAMS };

static void rate_piece(void *ctx, size_t i, size_t worker)
{
    typedef uint64_t vector __attribute__((vector_size(64), aligned(64)));
    rate_job        *j = ctx;
    const vector    *v = (const vector *)(const void *)(j->bytes + i * RATE_PIECE);
    vector           sums[RATE_STREAMS] = {{0}};
    for (size_t k = 0; k < RATE_STRIDE / sizeof *v; k++) {
        for (size_t s = 0; s < RATE_STREAMS; s++) {
            const vector *at = &v[s * (RATE_STRIDE / sizeof *v) + k];
            __builtin_prefetch((const char *)at + 1024);
            sums[s] += *at;
        }
    }
    for (size_t s = 0; s < RATE_STREAMS; s++) {
        for (int k = 0; k < 8; k++)
            j->sums[worker] += sums[s][k];
    }
}

double nw_session_memory_rate(nw_session *s)
{
    rate_job j = {.bytes = s->parts.region};
    size_t   pieces = nw_min_size((size_t)s->window.pinned_bytes, s->blueprint.shape.region_bytes) / RATE_PIECE;
    pieces = nw_min_size(pieces, NW_PIECES_MAX);
    if (pieces == 0)
        return 0;
    double start = nw_system_seconds();
    nw_workers_run(s->workers, rate_piece, &j, pieces);
    return (double)pieces * RATE_PIECE / (nw_system_seconds() - start);
}
