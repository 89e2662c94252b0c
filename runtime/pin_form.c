#include "pin_form.h"

#include <string.h>

/* Escapes that a slim pin leaves room for: one weight in so many. Normal weights have 2.1 % of them with codes of 3
 * bits, 0.02 % with 4; a strip with more stays streamed. */
enum { ESCAPE_SHARE_3 = 20, ESCAPE_SHARE_4 = 200 };

nw_pinning nw_pinning_make(nw_pin_form asked, const nw_kernels *kernels)
{
    nw_pinning p = {.form = asked, .slim_width = kernels->slim_width, .aligned = asked != NW_PINS_STORED};
    if (asked == NW_PINS_AUTO)
        p.form = kernels->slim_faster ? NW_PINS_SLIM : NW_PINS_STORED;
    return p;
}

/* Rows of the tile's strips, but perhaps of its last. */
static size_t strip_rows(const nw_model *m, nw_step step)
{
    return (size_t)nw_min_u64(m->places[step.tensor].cut.strip_rows, nw_model_tile_rows(m, step));
}

static size_t slim_stride(const nw_model *m, const nw_pinning *p, nw_step step)
{
    size_t rows = strip_rows(m, step), k = (size_t)m->places[step.tensor].cut.cols;
    size_t share = p->slim_width == 3 ? ESCAPE_SHARE_3 : ESCAPE_SHARE_4;
    return (size_t)nw_round_up(nw_slim_layout_of(rows, k, p->slim_width, rows * k / share).bytes, 64);
}

static size_t plain_stride(const nw_model *m, nw_step step)
{
    return (size_t)nw_round_up(strip_rows(m, step) * m->places[step.tensor].row_bytes, 64);
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

/* The form of a tile that is not made slim. */
static nw_pin_form plain_form(const nw_model *m, const nw_pinning *p, nw_step step, nw_form stored)
{
    if (stored == NW_FORM_PACKED)
        return p->form == NW_PINS_PLAIN ? NW_PINS_PLAIN : NW_PINS_STORED;
    bool odd = nw_checkpoint_pack(m->checkpoint) == NULL && nw_model_extent(m, step).skip % 64 != 0;
    return p->aligned && odd ? NW_PINS_PLAIN : NW_PINS_STORED;
}

bool nw_pin_is_packed(const nw_model *m, nw_step step)
{
    return stored_form(m, step) == NW_FORM_PACKED;
}

bool nw_pin_stays_packed(const nw_pinning *p, size_t index)
{
    /* Multiples of the golden ratio, modulo 1, are spread evenly, and so is any part of them that is. */
    return ((uint32_t)index * UINT32_C(2654435769)) >> 24 < p->packed_share;
}

static nw_pin_form form_of(const nw_model *m, const nw_pinning *p, bool stays_packed, nw_step step)
{
    nw_form stored = stored_form(m, step);
    bool walked = step.tensor != m->tensors.embed || step.tensor == m->tensors.head; /* by a pass, which fills pins */
    if (!walked || (stored != NW_FORM_PLAIN && stored != NW_FORM_PACKED))
        return NW_PINS_STORED;
    if (stays_packed && stored == NW_FORM_PACKED)
        return NW_PINS_STORED;
    bool shrinks = p->form == NW_PINS_SLIM && m->places[step.tensor].tensor->dtype == NW_BF16 &&
                   slim_stride(m, p, step) < plain_stride(m, step) / 10 * 9; /* short rows have more head than codes */
    return shrinks ? NW_PINS_SLIM : plain_form(m, p, step, stored);
}

nw_pin_shape nw_pin_shape_of(const nw_model *m, const nw_pinning *p, bool stays_packed, nw_step step, size_t align)
{
    nw_pin_shape s = {.form = form_of(m, p, stays_packed, step),
                      .slim_width = p->slim_width,
                      .dtype = m->places[step.tensor].tensor->dtype};
    if (s.form == NW_PINS_STORED) {
        s.bytes = (size_t)nw_round_up(nw_model_extent(m, step).bytes, align);
        return s;
    }
    uint64_t strips = nw_cut_strips(&m->places[step.tensor].cut, nw_model_tile_rows(m, step));
    s.stride = s.form == NW_PINS_SLIM ? slim_stride(m, p, step) : plain_stride(m, step);
    s.bytes = (size_t)nw_round_up(strips * s.stride, align);
    return s;
}

nw_rows nw_pin_rows(const nw_pin_shape *shape, size_t strip, const unsigned char *pin)
{
    return (nw_rows){.form = shape->form == NW_PINS_SLIM ? NW_ROWS_SLIM : NW_ROWS_PLAIN,
                     .dtype = shape->dtype,
                     .data = pin + strip * shape->stride};
}

bool nw_pin_fill(const nw_pin_shape *shape, const nw_kernels *kernels, size_t strip, size_t row_count, size_t cols,
                 unsigned char *pin, nw_rows *rows)
{
    unsigned char *to = pin + strip * shape->stride;
    if (rows->form != NW_ROWS_PLAIN)
        return false;
    if (shape->form == NW_PINS_PLAIN)
        memcpy(to, rows->data, row_count * cols * nw_dtype_bytes(shape->dtype));
    else if (kernels->slim_encode(to, shape->stride, rows->data, row_count, cols, shape->slim_width) == 0)
        return false;
    *rows = nw_pin_rows(shape, strip, pin);
    return true;
}
