/* Reading is a byte loop over stdio: a prompt's end is a newline or the end of the file, and a line has no length but
 * the limit. The limits are shares of the budget: ids stay resident beside the session, text only while it is
 * tokenised. */
#include "prompts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "utf8_text.h"

#define TEXT_SHARE                                                                                                     \
    64              /* of the budget, for the text of one prompt: what tokenising takes is a few dozen times as much */
#define IDS_SHARE 8 /* of the budget, for the ids of all prompts */
#define TEXT_MIN ((uint64_t)256 << 10)
#define TEXT_MAX ((uint64_t)64 << 20)

enum { WHERE_BYTES = 300 };

uint64_t prompts_text_limit(uint64_t budget_bytes)
{
    uint64_t limit = budget_bytes == 0 ? TEXT_MAX : budget_bytes / TEXT_SHARE;
    return limit < TEXT_MIN ? TEXT_MIN : limit > TEXT_MAX ? TEXT_MAX : limit;
}

static size_t ids_limit(uint64_t budget_bytes)
{
    uint64_t limit = budget_bytes == 0 ? (uint64_t)1 << 30 : budget_bytes / IDS_SHARE;
    return limit > SIZE_MAX ? SIZE_MAX : (size_t)limit;
}

/* ---- text
 * ------------------------------------------------------------------------------------------------------------- */

int prompts_open(prompt_source *source)
{
    if (source->text != NULL) {
        source->name = "the prompt";
        source->rest = source->text;
        return -1;
    }
    if (source->file == NULL || strcmp(source->file, "-") == 0) {
        source->name = "standard input";
        source->stream = stdin;
        return -1;
    }
    source->name = source->file;
    source->stream = fopen(source->file, "re");
    if (source->stream == NULL) {
        int cause = errno;
        print_error("cannot open '%s': %s", source->file, strerror(cause));
        return cause == ENOENT || cause == ENOTDIR ? EXIT_USAGE : EXIT_IO;
    }
    return -1;
}

void prompts_close(prompt_source *source)
{
    if (source->stream != NULL && source->stream != stdin)
        fclose(source->stream);
    source->stream = NULL;
}

static int next_byte(prompt_source *source)
{
    if (source->stream != NULL)
        return getc(source->stream);
    if (*source->rest == '\0')
        return EOF;
    return (unsigned char)*source->rest++;
}

/* "FILE, line 3: " for messages about a prompt among lines, else "". */
static const char *where_text(const prompt_source *source, char buf[WHERE_BYTES])
{
    buf[0] = '\0';
    if (source != NULL && source->lines)
        snprintf(buf, WHERE_BYTES, "%.200s, line %llu: ", source->name, (unsigned long long)source->line);
    return buf;
}

static int check_text(const prompt_source *source, const buffer *text)
{
    size_t at = utf8_invalid_at((const char *)text->data, text->used);
    if (at == SIZE_MAX)
        return -1;
    if (source->lines)
        print_error("%s, line %llu is not UTF-8 at byte %zu of the line", source->name,
                    (unsigned long long)source->line, at);
    else
        print_error("%s is not UTF-8 at byte %zu", source->name, at);
    return EXIT_USAGE;
}

int prompts_next(prompt_source *source, buffer *text, uint64_t limit, bool *ret_more)
{
    text->used = 0;
    *ret_more = false;
    if (source->ended)
        return -1;
    bool any = false, newline = false;
    for (;;) {
        int c = next_byte(source);
        if (c == EOF)
            break;
        any = true;
        newline = c == '\n';
        if (newline && source->lines)
            break;
        char byte = (char)c;
        if (!buffer_append(text, &byte, 1, (size_t)limit)) {
            char size[16], where[WHERE_BYTES];
            print_error("%sa prompt of more than %s of text is too long for this budget", where_text(source, where),
                        nw_bytes_format(limit, false, size));
            return EXIT_BUDGET;
        }
    }
    if (source->stream != NULL && ferror(source->stream)) {
        print_error("cannot read %s: %s", source->name, strerror(errno));
        return EXIT_IO;
    }
    source->ended = !source->lines || !newline;
    source->line++;
    if (source->lines && !any)
        return -1;
    if (!source->lines && newline && source->text == NULL)
        text->used--; /* editors and echo end a file with one */
    *ret_more = true;
    return check_text(source, text);
}

/* ---- ids
 * -------------------------------------------------------------------------------------------------------------- */

int ids_parse(buffer *ids, const char *text, size_t len, uint32_t vocab_size, size_t limit, const char *where)
{
    static const char between[] = " \t\r\n,";
    for (size_t i = 0; i < len;) {
        if (text[i] != '\0' && strchr(between, text[i]) != NULL) {
            i++;
            continue;
        }
        size_t   start = i;
        uint64_t id = 0;
        for (; i < len && text[i] >= '0' && text[i] <= '9'; i++)
            id = id > UINT32_MAX ? id : id * 10 + (uint64_t)(text[i] - '0');
        if (i == start || (i < len && (text[i] == '\0' || strchr(between, text[i]) == NULL))) {
            while (i < len && text[i] != '\0' && strchr(between, text[i]) == NULL)
                i++;
            print_error("%s'%.*s' is not a token id", where, (int)(i - start > 40 ? 40 : i - start), text + start);
            return EXIT_USAGE;
        }
        if (id >= vocab_size) {
            print_error("%stoken id %.*s is out of range: vocab_size is %u", where,
                        (int)(i - start > 40 ? 40 : i - start), text + start, vocab_size);
            return EXIT_USAGE;
        }
        uint32_t id32 = (uint32_t)id;
        if (!buffer_append(ids, &id32, sizeof id32, limit)) {
            print_error("%smore token ids than this budget has room for", where);
            return EXIT_BUDGET;
        }
    }
    return -1;
}

static void warn_unknown(nw_model *model, const char *where, const char *text, size_t len)
{
    char   lacking[256];
    size_t count = nw_model_unknown_text(model, text, len, lacking, sizeof lacking);
    if (count == 0)
        return;
    size_t shown = lacking[0] != '\0' ? 1 : 0;
    for (const char *c = lacking; *c != '\0'; c++)
        shown += *c == ' ' ? 1 : 0;
    print_note("%sthe vocabulary lacks these characters: %s%s", where, lacking, shown < count ? " ..." : "");
}

/* Encodes behind ids->used, which is left alone; *ret_count ids were written. */
static int encode_text(buffer *ids, nw_model *model, size_t limit, const char *where, const char *text, size_t len,
                       size_t *ret_count)
{
    size_t room = len / 4 + 8; /* most prompts need no second try */
    for (;;) {
        if (!buffer_reserve(ids, room * sizeof(uint32_t), limit)) {
            print_error("%sthe prompts have more tokens than this budget has room for", where);
            return EXIT_BUDGET;
        }
        uint32_t *at = (uint32_t *)ids->data + ids->used / sizeof(uint32_t);
        nw_error  err = {0};
        if (nw_model_encode_text(model, text, len, at, room, ret_count, &err) != NW_OK)
            return print_text_failure(&err);
        if (*ret_count <= room)
            return -1;
        room = *ret_count;
    }
}

/* Cuts the `count` ids at the end of the buffer to the longest allowed; the last stays the end token. */
static size_t cut_ids(uint32_t *ids, size_t count, size_t max, const char *where)
{
    if (max == 0 || count <= max)
        return count;
    ids[max - 1] = ids[count - 1];
    print_note("%sthe prompt is cut from %zu to %zu tokens", where, count, max);
    return max;
}

int prompts_add(prompts *p, nw_model *model, const prompt_rules *rules, const prompt_source *source, const char *text,
                size_t len)
{
    char   where[WHERE_BYTES];
    size_t limit = ids_limit(rules->budget_bytes), first = p->ids.used, count = 0;
    where_text(source, where);
    int status = -1;
    if (len == 0 && !rules->empty_allowed) {
        print_error("empty prompt");
        return EXIT_USAGE;
    }
    if (rules->as_ids) {
        status = ids_parse(&p->ids, text, len, rules->vocab_size, limit, where);
        count = (p->ids.used - first) / sizeof(uint32_t);
        if (status == -1 && count == 0 && !rules->empty_allowed) {
            print_error("empty prompt: no token ids");
            return EXIT_USAGE;
        }
    } else if (len > 0) {
        status = encode_text(&p->ids, model, limit, where, text, len, &count);
        if (status == -1)
            warn_unknown(model, where, text, len);
    }
    if (status != -1)
        return status;
    if (count > 0)
        count = cut_ids((uint32_t *)p->ids.data + first / sizeof(uint32_t), count, rules->max_input_tokens, where);
    p->ids.used = first + count * sizeof(uint32_t);
    size_t end = p->ids.used / sizeof(uint32_t);
    if (!buffer_append(&p->ends, &end, sizeof end, limit)) {
        print_error("%smore prompts than this budget has room for", where);
        return EXIT_BUDGET;
    }
    p->count++;
    p->longest = count > p->longest ? count : p->longest;
    return -1;
}

int prompts_read(prompts *p, nw_model *model, const prompt_rules *rules, prompt_source *source)
{
    int    status = prompts_open(source);
    buffer text = {0};
    while (status == -1) {
        bool more;
        status = prompts_next(source, &text, prompts_text_limit(rules->budget_bytes), &more);
        if (status != -1 || !more)
            break;
        const char *bytes = text.data != NULL ? (const char *)text.data : "";
        status = prompts_add(p, model, rules, source, bytes, text.used);
    }
    buffer_free(&text);
    prompts_close(source);
    return status;
}

const uint32_t *prompts_ids(const prompts *p, size_t index, size_t *ret_count)
{
    const size_t *ends = (const size_t *)p->ends.data;
    size_t        first = index == 0 ? 0 : ends[index - 1];
    *ret_count = ends[index] - first;
    return p->ids.data == NULL ? NULL : (const uint32_t *)p->ids.data + first;
}

void prompts_clear(prompts *p)
{
    p->ids.used = p->ends.used = 0;
    p->count = p->longest = 0;
}

void prompts_free(prompts *p)
{
    buffer_free(&p->ids);
    buffer_free(&p->ends);
    *p = (prompts){0};
}
