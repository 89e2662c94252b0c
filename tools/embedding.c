/* Texts go through the encoder in waves, as many at a time as one pass takes. States are written from where they were
 * made: the rows of a wave go to the file, or into means, before the next wave, so that what is held does not grow with
 * the number of texts.
 *
 *   pooled                 embeddings     [texts, d_model]
 *   one text               states         [tokens, d_model]           input_ids, attention_mask  [tokens]
 *   lines, padded          states         [texts, pad_to, d_model]    input_ids, attention_mask  [texts, pad_to]
 *   lines of any length    states.0, ...  [tokens, d_model]           input_ids.0, ...           [tokens]
 *
 * attention_mask is 1 for tokens and 0 for pads, as tokenizers give it, whether pads were attended to or not. An .npy
 * file has the first tensor alone. */
#include "embedding.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "interrupt.h"
#include "print.h"

enum { REPEAT_ELEMENTS = 1024, WAVE_MAX = 256 };

bool embedding_room(embedding_style *style, buffer *room, uint64_t limit)
{
    size_t bytes = style->d_model * (sizeof *style->sums + sizeof *style->pooled);
    if (!buffer_reserve(room, bytes, (size_t)limit))
        return false;
    style->sums = (double *)room->data;
    style->pooled = (float *)(style->sums + style->d_model);
    return true;
}

/* Masked pads change nothing of a mean, and zeros need no computing. */
static bool computes_pads(const embedding_style *style)
{
    return style->pad_to > 0 && (style->attend_pads || !(style->pool || style->zero_pads));
}

size_t embedding_tokens_max(const embedding_style *style, size_t longest)
{
    if (computes_pads(style))
        return style->pad_to;
    return longest > 0 ? longest : 1;
}

/* Several texts in one tensor. */
static bool is_stacked(const embedding_style *style)
{
    return !style->pool && style->lines && style->pad_to > 0;
}

size_t embedding_tensor_count(const embedding_style *style, size_t text_count)
{
    if (style->pool)
        return 1;
    return style->lines && style->pad_to == 0 ? 3 * text_count : 3;
}

/* The ids of a text: an empty one is an end token. */
static const uint32_t *ids_of(const embedding_style *style, const prompts *texts, size_t index, size_t *ret_count)
{
    const uint32_t *ids = prompts_ids(texts, index, ret_count);
    if (*ret_count > 0)
        return ids;
    *ret_count = 1;
    return &style->eos_id;
}

size_t embedding_rows(const embedding_style *style, const prompts *texts)
{
    size_t rows = 0, count;
    for (size_t i = 0; i < texts->count; i++) {
        ids_of(style, texts, i, &count);
        rows += computes_pads(style) ? style->pad_to : count;
    }
    return rows;
}

/* ---- to a file ---- */

/* `count` times an element of four bytes. */
static int write_repeated(tensor_file *file, uint32_t element, uint64_t count)
{
    uint32_t elements[REPEAT_ELEMENTS];
    int      status = -1;
    for (size_t i = 0; i < REPEAT_ELEMENTS; i++)
        elements[i] = element;
    while (count > 0 && status == -1) {
        size_t part = count < REPEAT_ELEMENTS ? (size_t)count : REPEAT_ELEMENTS;
        status = tensor_file_write(file, elements, part);
        count -= part;
    }
    return status;
}

/* Begins a tensor of one row a token, or if all texts are together, a text. width: of a token; 0: a number. */
static int begin(const embedding_style *style, const char *name, size_t index, tensor_type type, size_t width)
{
    char     full[32];
    uint64_t inner[TENSOR_INNER_MAX];
    size_t   count = 0;
    bool     numbered = style->lines && !style->pool && !is_stacked(style);
    if (is_stacked(style))
        inner[count++] = style->pad_to;
    if (width > 0)
        inner[count++] = width;
    snprintf(full, sizeof full, numbered ? "%s.%zu" : "%s", name, index);
    return tensor_file_begin(style->file, full, type, inner, count);
}

static size_t pads_of(const embedding_style *style, size_t count)
{
    return style->pad_to > count ? style->pad_to - count : 0;
}

static int write_states(const embedding_style *style, const float *states, size_t rows, size_t count)
{
    size_t kept = style->zero_pads ? count : rows;
    size_t zeros = count + pads_of(style, count) - kept; /* bits of 0.0f are those of 0 */
    int    status = tensor_file_write(style->file, states, kept * style->d_model);
    return status == -1 ? write_repeated(style->file, 0, (uint64_t)zeros * style->d_model) : status;
}

static int write_ids(const embedding_style *style, const uint32_t *ids, size_t count)
{
    int status = tensor_file_write(style->file, ids, count);
    return status == -1 ? write_repeated(style->file, style->pad_id, pads_of(style, count)) : status;
}

static int write_mask(const embedding_style *style, size_t count)
{
    int status = write_repeated(style->file, 1, count);
    return status == -1 ? write_repeated(style->file, 0, pads_of(style, count)) : status;
}

/* input_ids or attention_mask of texts [first, end), as one tensor. */
static int write_inputs(const embedding_style *style, const prompts *texts, size_t first, size_t end, bool mask)
{
    int status = begin(style, mask ? "attention_mask" : "input_ids", first, TENSOR_I32, 0);
    for (size_t i = first; i < end && status == -1; i++) {
        size_t          count;
        const uint32_t *ids = ids_of(style, texts, i, &count);
        status = mask ? write_mask(style, count) : write_ids(style, ids, count);
    }
    return status == -1 ? tensor_file_end(style->file) : status;
}

static int write_both_inputs(const embedding_style *style, const prompts *texts, size_t first, size_t end)
{
    if (style->file->npy)
        return -1;
    int status = write_inputs(style, texts, first, end, false);
    return status == -1 ? write_inputs(style, texts, first, end, true) : status;
}

/* ---- pooled ---- */

/* The mean of the tokens' states, pads left out; in double precision, which is then rounded once. */
static void pool_states(const embedding_style *style, const float *states, size_t count)
{
    size_t d = style->d_model;
    double length = 0;
    memset(style->sums, 0, d * sizeof *style->sums);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < d; k++)
            style->sums[k] += (double)states[i * d + k];
    }
    for (size_t k = 0; k < d; k++) {
        style->sums[k] /= (double)count;
        length += style->sums[k] * style->sums[k];
    }
    double scale = style->normalize && length > 0 ? 1 / sqrt(length) : 1;
    for (size_t k = 0; k < d; k++)
        style->pooled[k] = (float)(style->sums[k] * scale);
}

static void write_json(const embedding_style *style, size_t count)
{
    bool ok = print_text("{\"prompt_tokens\": %zu, \"embedding\": [", count);
    for (size_t k = 0; k < style->d_model && ok; k++)
        ok = (k == 0 || print_bytes(", ", 2)) && print_json_float(style->pooled[k]);
    ok = ok && print_bytes("]", 1);
    if (ok && style->stats) {
        nw_stats s;
        nw_session_stats(style->session, &s);
        ok = print_text(", \"stats\": {\"budget_bytes\": %llu, \"peak_rss_bytes\": %llu, \"bytes_read\": %llu, "
                        "\"seconds_load\": ",
                        (unsigned long long)s.budget_bytes, (unsigned long long)s.peak_rss_bytes,
                        (unsigned long long)s.bytes_read) &&
             print_json_number(s.seconds_load) && print_text(", \"seconds_encode\": ") &&
             print_json_number(s.seconds_encode) && print_text(", \"io\": \"%s\", \"threads\": %u}", s.io, s.threads);
    }
    (void)(ok && print_text("}\n") && print_flush()); /* print_finish says what is wrong with stdout */
}

/* ---- together ---- */

static nw_encode_request make_request(const embedding_style *style, const prompts *texts, size_t index)
{
    nw_encode_request q = {.pad_to = computes_pads(style) ? style->pad_to : 0,
                           .attend_pads = style->attend_pads,
                           .zero_pads = style->zero_pads,
                           .more = index + 1 < texts->count};
    q.ids = ids_of(style, texts, index, &q.count);
    return q;
}

/* Encodes texts from `first` on, as many as one pass takes. */
static int encode(const embedding_style *style, const prompts *texts, size_t first, nw_encode_request *wave,
                  size_t *ret_count, const float **ret_states)
{
    nw_error err = {0};
    size_t   n = 0, rows = 0;
    for (; n < WAVE_MAX && first + n < texts->count; n++) {
        wave[n] = make_request(style, texts, first + n);
        rows += nw_encode_rows(&wave[n]);
        if (n > 0 && rows > style->encode_tokens)
            break;
    }
    nw_code rc = nw_session_encode_many(style->session, wave, n, ret_states, &err);
    *ret_count = n;
    print_progress_clear();
    if (rc == NW_E_CANCELLED || interrupted())
        return EXIT_INTERRUPTED;
    return rc == NW_OK ? -1 : print_failure(&err);
}

static int write_text(embedding_style *style, const prompts *texts, size_t index, const float *states, size_t rows)
{
    size_t count;
    ids_of(style, texts, index, &count);
    if (style->pool) {
        pool_states(style, states, count);
        if (style->file != NULL)
            return tensor_file_write(style->file, style->pooled, style->d_model);
        write_json(style, count);
        return -1;
    }
    if (is_stacked(style))
        return write_states(style, states, rows, count);
    int status = begin(style, "states", index, TENSOR_F32, style->d_model);
    if (status == -1)
        status = write_states(style, states, rows, count);
    if (status == -1)
        status = tensor_file_end(style->file);
    return status == -1 ? write_both_inputs(style, texts, index, index + 1) : status;
}

/* Encodes and writes one wave; *index goes behind it. */
static int write_wave(embedding_style *style, const prompts *texts, size_t *index)
{
    nw_encode_request wave[WAVE_MAX];
    const float      *states;
    size_t            count;
    int               status = encode(style, texts, *index, wave, &count, &states);
    for (size_t i = 0; i < count && status == -1; i++) {
        size_t rows = nw_encode_rows(&wave[i]);
        status = write_text(style, texts, (*index)++, states, rows);
        states += rows * style->d_model;
        if (style->file == NULL && !print_flush())
            break;
    }
    return status;
}

int embedding_write_all(embedding_style *style, const prompts *texts)
{
    bool together = style->file != NULL && (style->pool || is_stacked(style));
    int  status = -1;
    if (together)
        status = begin(style, style->pool ? "embeddings" : "states", 0, TENSOR_F32, style->d_model);
    for (size_t i = 0; i < texts->count && status == -1;) {
        status = write_wave(style, texts, &i);
        if (style->file == NULL && !print_flush())
            break;
    }
    if (together && status == -1)
        status = tensor_file_end(style->file);
    if (together && status == -1 && !style->pool)
        status = write_both_inputs(style, texts, 0, texts->count);
    return status;
}
