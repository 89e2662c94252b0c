#include "pin_form.h"

#include <string.h>

/* Escapes that a slim pin leaves room for: one weight in so many. Normal weights have 2.1 % of them with codes of 3
 * bits, 0.02 % with 4; a strip with more stays streamed. */
enum { ESCAPE_SHARE_3 = 20, ESCAPE_SHARE_4 = 200 };

nw_pinning nw_pinning_make(nw_pin_form asked, const nw_kernels *kernels)
{
    nw_pinning p = {.form = asked, .slim_width = kernels->slim_width};
    if (asked == NW_PINS_AUTO)
        p.form = strcmp(kernels->name, "portable") == 0 ? NW_PINS_STORED : NW_PINS_SLIM;
    return p;
}

static size_t strip_rows(const nw_model *m, nw_step step, size_t strip)
{
    const nw_cut *cut = &m->places[step.tensor].cut;
    uint64_t      rows = nw_cut_rows(cut, step.tile), first = strip * cut->strip_rows;
    return (size_t)nw_min_u64(cut->strip_rows, rows - first);
}

static size_t slim_stride(const nw_model *m, const nw_pinning *p, nw_step step)
{
    size_t rows = strip_rows(m, step, 0), k = (size_t)m->places[step.tensor].cut.cols;
    size_t share = p->slim_width == 3 ? ESCAPE_SHARE_3 : ESCAPE_SHARE_4;
    return (size_t)nw_round_up(nw_slim_layout_of(rows, k, p->slim_width, rows * k / share).bytes, 64);
}

static size_t plain_stride(const nw_model *m, nw_step step)
{
    return (size_t)nw_round_up(strip_rows(m, step, 0) * m->places[step.tensor].row_bytes, 64);
}

/* The form of a tile's strips as they are read; some of a packed tile may be plain. */
static nw_form stored_form(const nw_model *m, nw_step step)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    if (pack == NULL)
        return NW_FORM_PLAIN;
    nw_pack_tile t = nw_pack_tile_at(pack, (size_t)m->places[step.tensor].tile_first + step.tile);
    return nw_pack_strip_at(pack, t.strip_first).form;
}

nw_pin_form nw_pin_form_of(const nw_model *m, const nw_pinning *p, nw_step step)
{
    nw_form stored = stored_form(m, step);
    if (p->form == NW_PINS_STORED || (stored != NW_FORM_PLAIN && stored != NW_FORM_PACKED))
        return NW_PINS_STORED;
    if (p->form == NW_PINS_PLAIN)
        return stored == NW_FORM_PACKED ? NW_PINS_PLAIN : NW_PINS_STORED;
    bool shrinks = m->places[step.tensor].tensor->dtype == NW_BF16 &&
                   slim_stride(m, p, step) < plain_stride(m, step) / 10 * 9; /* short rows have more head than codes */
    return shrinks ? NW_PINS_SLIM : NW_PINS_STORED;
}

size_t nw_pin_stride(const nw_model *m, const nw_pinning *p, nw_step step)
{
    return nw_pin_form_of(m, p, step) == NW_PINS_SLIM ? slim_stride(m, p, step) : plain_stride(m, step);
}

size_t nw_pin_room(const nw_model *m, const nw_pinning *p, nw_step step, size_t align)
{
    if (nw_pin_form_of(m, p, step) == NW_PINS_STORED)
        return (size_t)nw_round_up(nw_model_extent(m, step).bytes, align);
    uint64_t strips = nw_cut_strips(&m->places[step.tensor].cut, nw_model_tile_rows(m, step));
    return (size_t)nw_round_up(strips * nw_pin_stride(m, p, step), align);
}

nw_rows nw_pin_rows(const nw_model *m, const nw_pinning *p, nw_step step, size_t strip, const unsigned char *pin)
{
    bool slim = nw_pin_form_of(m, p, step) == NW_PINS_SLIM;
    return (nw_rows){.form = slim ? NW_ROWS_SLIM : NW_ROWS_PLAIN,
                     .dtype = m->places[step.tensor].tensor->dtype,
                     .data = pin + strip * nw_pin_stride(m, p, step)};
}

bool nw_pin_fill(const nw_model *m, const nw_pinning *p, const nw_kernels *kernels, nw_step step, size_t strip,
                 unsigned char *pin, nw_rows *rows)
{
    const nw_place *place = &m->places[step.tensor];
    size_t          n = strip_rows(m, step, strip), stride = nw_pin_stride(m, p, step);
    unsigned char  *to = pin + strip * stride;
    if (rows->form != NW_ROWS_PLAIN)
        return false;
    if (nw_pin_form_of(m, p, step) == NW_PINS_PLAIN)
        memcpy(to, rows->data, n * (size_t)place->row_bytes);
    else if (kernels->slim_encode(to, stride, rows->data, n, (size_t)place->cut.cols, p->slim_width) == 0)
        return false;
    *rows = nw_pin_rows(m, p, step, strip, pin);
    return true;
}

void nw_pin_row(const nw_model *m, const nw_pinning *p, const nw_kernels *kernels, uint32_t id,
                const unsigned char *pin, float *out)
{
    const nw_place      *place = &m->places[m->tensors.embed];
    nw_step              step = {.tensor = m->tensors.embed, .tile = (uint32_t)(id / place->cut.tile_rows)};
    uint64_t             in_tile = id % place->cut.tile_rows, row = in_tile % place->cut.strip_rows;
    nw_rows              rows = nw_pin_rows(m, p, step, (size_t)(in_tile / place->cut.strip_rows), pin);
    const unsigned char *data = rows.data;
    if (rows.form == NW_ROWS_SLIM)
        kernels->widen_slim(out, data, (size_t)row, 1);
    else
        kernels->widen[rows.dtype](out, data + row * place->row_bytes, m->config.d_model);
}
