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

#define SKIP_FACTOR 64 /* a line so many times longer than the limit is no line: its end is not looked for */

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

/* Goes to the end of a line of which there is no room for the rest. False: it is not in sight. */
static bool skip_line(prompt_source *source, uint64_t limit)
{
    for (uint64_t skipped = 0; skipped / SKIP_FACTOR < limit; skipped++) {
        int c = next_byte(source);
        if (c == '\n' || c == EOF) {
            source->ended = c == EOF;
            return true;
        }
    }
    return false;
}

static int refuse_text(prompt_source *source, uint64_t limit, prompt_fault *ret_fault)
{
    char size[16], where[WHERE_BYTES];
    source->line++;
    print_error("%sa prompt of more than %s of text is too long for this budget", where_text(source, where),
                nw_bytes_format(limit, false, size));
    if (source->lines && ret_fault != NULL && skip_line(source, limit))
        *ret_fault = PROMPT_TOO_LONG;
    return EXIT_BUDGET;
}

int prompts_next(prompt_source *source, buffer *text, uint64_t limit, bool *ret_more, prompt_fault *ret_fault)
{
    text->used = 0;
    *ret_more = false;
    if (ret_fault != NULL)
        *ret_fault = PROMPT_FINE;
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
        if (!buffer_append(text, &byte, 1, (size_t)limit))
            return refuse_text(source, limit, ret_fault);
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
    int status = check_text(source, text);
    if (status != -1 && ret_fault != NULL)
        *ret_fault = PROMPT_NOT_UTF8;
    return status;
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

/* Appends a prompt whose ids are there. */
static int end_prompt(prompts *p, size_t limit, prompt_fault fault, const char *where)
{
    size_t        end = p->ids.used / sizeof(uint32_t);
    unsigned char mark = (unsigned char)fault;
    if (!buffer_append(&p->ends, &end, sizeof end, limit) || !buffer_append(&p->faults, &mark, sizeof mark, limit)) {
        print_error("%smore prompts than this budget has room for", where);
        return EXIT_BUDGET;
    }
    p->count++;
    return -1;
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
    if (status != -1) {
        p->ids.used = first;
        return status;
    }
    if (count > 0)
        count = cut_ids((uint32_t *)p->ids.data + first / sizeof(uint32_t), count, rules->max_input_tokens, where);
    p->ids.used = first + count * sizeof(uint32_t);
    p->longest = count > p->longest ? count : p->longest;
    return end_prompt(p, limit, PROMPT_FINE, where);
}

/* Puts the prefix before a text that is not empty. */
static int put_prefix(const prompt_rules *rules, buffer *text)
{
    size_t len = text->used, more = len > 0 ? rules->prefix_len : 0;
    if (more == 0)
        return -1;
    if (!buffer_reserve(text, more, SIZE_MAX)) {
        print_error("out of memory");
        return EXIT_INTERNAL;
    }
    memmove((char *)text->data + more, text->data, len);
    memcpy(text->data, rules->prefix, more);
    text->used += more;
    return -1;
}

int prompts_read_one(prompts *p, nw_model *model, const prompt_rules *rules, prompt_source *source, buffer *text,
                     bool *ret_more)
{
    prompt_fault fault;
    char         where[WHERE_BYTES];
    int          status = prompts_next(source, text, prompts_text_limit(rules->budget_bytes), ret_more, &fault);
    if (status == -1 && !*ret_more)
        return -1;
    if (status == -1)
        status = put_prefix(rules, text);
    if (status == -1) {
        const char *bytes = text->data != NULL ? (const char *)text->data : "";
        status = prompts_add(p, model, rules, source, bytes, text->used);
        fault = status == EXIT_USAGE ? PROMPT_NOT_IDS : PROMPT_FINE;
    }
    if (fault != PROMPT_FINE)
        *ret_more = true;
    if (status == -1 || fault == PROMPT_FINE || !rules->faults_allowed)
        return status;
    p->status = status;
    return end_prompt(p, ids_limit(rules->budget_bytes), fault, where_text(source, where));
}

int prompts_read(prompts *p, nw_model *model, const prompt_rules *rules, prompt_source *source)
{
    int    status = prompts_open(source);
    buffer text = {0};
    bool   more = true;
    p->status = -1;
    while (status == -1 && more)
        status = prompts_read_one(p, model, rules, source, &text, &more);
    buffer_free(&text);
    prompts_close(source);
    return status;
}

prompt_fault prompts_fault(const prompts *p, size_t index)
{
    return (prompt_fault)((const unsigned char *)p->faults.data)[index];
}

const uint32_t *prompts_ids(const prompts *p, size_t index, size_t *ret_count)
{
    const size_t *ends = (const size_t *)p->ends.data;
    size_t        first = index == 0 ? 0 : ends[index - 1];
    *ret_count = prompts_fault(p, index) == PROMPT_FINE ? ends[index] - first : 0;
    return p->ids.data == NULL ? NULL : (const uint32_t *)p->ids.data + first;
}

void prompts_drop_longer(prompts *p, const prompt_source *source, size_t most)
{
    p->longest = 0;
    for (size_t i = 0; i < p->count; i++) {
        size_t count;
        prompts_ids(p, i, &count);
        if (count <= most) {
            p->longest = count > p->longest ? count : p->longest;
            continue;
        }
        print_error("%s, line %zu: a prompt of %zu tokens is too long for this budget, which has room for %zu",
                    source->name, i + 1, count, most);
        ((unsigned char *)p->faults.data)[i] = PROMPT_TOO_LONG;
        p->status = EXIT_BUDGET;
    }
}

void prompts_clear(prompts *p)
{
    p->ids.used = p->ends.used = p->faults.used = 0;
    p->count = p->longest = 0;
    p->status = -1;
}

void prompts_free(prompts *p)
{
    buffer_free(&p->ids);
    buffer_free(&p->ends);
    buffer_free(&p->faults);
    *p = (prompts){0};
}
