/* The session calls every 50 ms; most calls only look at the clock. The rate is that of the last half second, not of
 * the whole run: a person who watches wants to know what the disk does now. */
#include "progress.h"

#include <stdio.h>
#include <time.h>

#include "print.h"

#define REDRAW_SECONDS 0.1
#define PLAIN_SECONDS 30.0
#define STRETCH_SECONDS 0.5
#define FIRST_SECONDS 0.3 /* a run that is over by then needs no line */

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void progress_start(progress *p, bool quiet, const nw_session *session)
{
    nw_stats stats;
    nw_session_stats(session, &stats);
    double now = now_seconds();
    *p = (progress){.quiet = quiet, .rate_seconds = now, .rate_bytes = stats.bytes_read, .start_seconds = now};
    p->drawn_seconds = now + (print_progress_possible() ? FIRST_SECONDS - REDRAW_SECONDS : 0);
}

/* "312/1000 lines, 4.1/s, 168 s left, " where there are many. */
static void say_lines(const progress *p, double now, char *buf, size_t cap)
{
    buf[0] = '\0';
    double seconds = now - p->start_seconds;
    if (p->lines == 0)
        return;
    int len = snprintf(buf, cap, "%zu/%zu lines, ", p->lines_done, p->lines);
    if (p->lines_done == 0 || !(seconds > 0))
        return;
    double rate = (double)p->lines_done / seconds;
    snprintf(buf + len, cap - (size_t)len, "%.3g/s, %.0f s left, ", rate, (double)(p->lines - p->lines_done) / rate);
}

void progress_update(void *user, const nw_stats *stats)
{
    progress *p = user;
    double    now = now_seconds();
    if (p->quiet || p->hidden)
        return;
    if (now - p->rate_seconds >= STRETCH_SECONDS) {
        p->rate = (double)(stats->bytes_read - p->rate_bytes) / (now - p->rate_seconds);
        p->rate_seconds = now;
        p->rate_bytes = stats->bytes_read;
    }
    bool terminal = print_progress_possible();
    if (now - p->drawn_seconds < (terminal ? REDRAW_SECONDS : PLAIN_SECONDS))
        return;
    p->drawn_seconds = now;
    char     line[256], lines[128];
    unsigned block =
        stats->block < stats->block_count ? stats->block + 1 : stats->block_count; /* the head follows the last */
    say_lines(p, now, lines, sizeof lines);
    snprintf(line, sizeof line, "%s%s %u/%u, %.0f MB/s, %llu %s", lines, stats->pass, block, stats->block_count,
             p->rate / 1e6, (unsigned long long)(p->texts ? stats->prompts : stats->tokens),
             p->texts ? "texts" : "tokens");
    if (terminal)
        print_progress(line);
    else
        print_note("%s", line);
}

void progress_summary(const nw_stats *stats)
{
    char   peak[16], budget[16], bytes[16];
    double passes = stats->decode_passes > 0 ? (double)stats->decode_passes : 0;
    double rate = stats->seconds_decode > 0 ? passes / stats->seconds_decode : 0;
    print_note("peak %s of %s, %s read, %llu tokens, %.3g s to the first, then %.3g a second (%s, %s, %u threads)",
               nw_bytes_format(stats->peak_rss_bytes, true, peak), nw_bytes_format(stats->budget_bytes, false, budget),
               nw_bytes_format(stats->bytes_read, false, bytes), (unsigned long long)stats->tokens,
               stats->seconds_first_token, rate, stats->io, stats->kernels, stats->threads);
}

void progress_summary_texts(const nw_stats *stats)
{
    char peak[16], budget[16], bytes[16];
    print_note("peak %s of %s, %s read, %llu texts, %.3g s the last (%s, %s, %u threads)",
               nw_bytes_format(stats->peak_rss_bytes, true, peak), nw_bytes_format(stats->budget_bytes, false, budget),
               nw_bytes_format(stats->bytes_read, false, bytes), (unsigned long long)stats->prompts,
               stats->seconds_encode, stats->io, stats->kernels, stats->threads);
}
