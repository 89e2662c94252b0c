/* Source  "Trace Event Format" (the document of the Chromium project), JSON Array Format: ph X is a complete event, ts
 * and dur are microseconds; ph M names a process or a thread. */
#include "timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "print.h"

enum { PROCESS = 1, READ_TRACK_FIRST = 1000 }; /* tracks of reads come behind those of threads */

FILE *timeline_open(const char *path)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        print_error("write '%s': %s", path, strerror(errno));
    return file;
}

static void name_track(FILE *file, uint32_t track, const char *kind, uint32_t number)
{
    fprintf(file,
            "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%" PRIu32 ",\"args\":{\"name\":\"%s %" PRIu32
            "\"}},\n",
            PROCESS, track, kind, number);
}

/* Names of tensors come from a file: what JSON does not take as it stands is left out. */
static void write_plain(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text >= 0x20 && (unsigned char)*text < 0x7f && *text != '"' && *text != '\\')
            fputc(*text, file);
    }
}

static void write_event(FILE *file, const nw_event *e, uint64_t start_ns)
{
    static const char *const kinds[] = {
        [NW_EVENT_READ] = "read",           [NW_EVENT_RESTORE] = "decode", [NW_EVENT_PRODUCT] = "product",
        [NW_EVENT_ATTENTION] = "attention", [NW_EVENT_NORM] = "norm",      [NW_EVENT_WAIT] = "wait"};
    uint32_t track = e->kind == NW_EVENT_READ ? READ_TRACK_FIRST + e->thread : e->thread;
    fprintf(file, "{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s %s\",\"pid\":%d,\"tid\":%" PRIu32, kinds[e->kind],
            kinds[e->kind], e->block, PROCESS, track);
    fprintf(file, ",\"ts\":%.3f,\"dur\":%.3f", (double)(e->begin_ns - start_ns) * 1e-3,
            (double)(e->end_ns - e->begin_ns) * 1e-3);
    if (e->tensor != NULL) {
        fputs(",\"args\":{\"tensor\":\"", file);
        write_plain(file, e->tensor);
        fprintf(file, "\",\"tile\":%" PRIu32 "}", e->tile);
    }
    fputs("},\n", file);
}

static void write_all(FILE *file, const nw_session *session)
{
    nw_event e;
    uint64_t start_ns = UINT64_MAX;
    uint32_t threads = 0, reads = 0;
    for (size_t i = 0; nw_session_event(session, i, &e); i++) {
        uint32_t *count = e.kind == NW_EVENT_READ ? &reads : &threads;
        *count = e.thread >= *count ? e.thread + 1 : *count;
        start_ns = e.begin_ns < start_ns ? e.begin_ns : start_ns;
    }
    fputs("[\n", file);
    for (uint32_t i = 0; i < threads; i++)
        name_track(file, i, "thread", i);
    for (uint32_t i = 0; i < reads; i++)
        name_track(file, READ_TRACK_FIRST + i, "read", i);
    for (size_t i = 0; nw_session_event(session, i, &e); i++)
        write_event(file, &e, start_ns);
    fprintf(file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"narrows\"}}\n]\n", PROCESS);
}

int timeline_write(FILE *file, const char *path, const nw_session *session)
{
    nw_times times;
    if (file == NULL)
        return -1;
    errno = 0;
    write_all(file, session);
    bool wrote = ferror(file) == 0;
    int  why = errno;
    if (fclose(file) != 0 && wrote) {
        wrote = false;
        why = errno;
    }
    if (!wrote) {
        print_error("write '%s': %s", path, strerror(why != 0 ? why : EIO));
        return EXIT_IO;
    }
    nw_session_times(session, &times);
    if (times.events_lost > 0)
        print_note("the timeline ends early: %zu events are in '%s', %zu found no room (see --trace-events)",
                   times.events_kept, path, times.events_lost);
    return -1;
}
