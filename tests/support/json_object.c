/* json_object < FILE: status 0 if FILE is one JSON object, by the project's strict scan (UTF-8, no key twice), with a
 * newline behind it and nothing else; otherwise 1, and why. json_object lines < FILE: one such object a line. */
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nw_code on_event(void *user, const nw_json_event *e, nw_error *err)
{
    (void)user;
    if (e->depth == 0 && e->type != NW_JSON_OBJECT_BEGIN && e->type != NW_JSON_OBJECT_END)
        return nw_fail(err, NW_E_FORMAT, 0, "no object");
    return NW_OK;
}

static bool check(const char *text, size_t len)
{
    nw_memory memory;
    nw_error  err = {0};
    nw_memory_init(&memory, UINT64_MAX, NULL);
    nw_code rc = nw_json_scan(&memory, "stdin", text, len, NULL, on_event, NULL, &err);
    if (rc != NW_OK)
        fprintf(stderr, "json_object: %s\n", err.msg);
    return rc == NW_OK;
}

int main(int argc, char **argv)
{
    static char text[(size_t)4 << 20];
    size_t      len = fread(text, 1, sizeof text, stdin);
    bool        lines = argc > 1 && strcmp(argv[1], "lines") == 0;
    if (len == 0 || len == sizeof text || text[len - 1] != '\n') {
        fprintf(stderr, "json_object: empty, too long, or no newline at its end\n");
        return EXIT_FAILURE;
    }
    for (size_t at = 0; at < len;) {
        const char *end = lines ? memchr(text + at, '\n', len - at) : text + len - 1;
        size_t      part = (size_t)(end - (text + at));
        if (!check(text + at, part))
            return EXIT_FAILURE;
        at += part + 1;
    }
    return EXIT_SUCCESS;
}
