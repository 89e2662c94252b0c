/* The session's arena: what is in it and where. Laid out twice by the same code: once with no base, to learn its size
 * for the plan, once over the mapping.
 *
 *   [ index | buffers | K and V | rows | window slots | region: pins, its tail overlaid by the encoder's scratch ]
 *
 * A session that only encodes has no K and V and no buffers of decoding, and its scratch lies behind its pins.
 */
#ifndef NW_RUNTIME_LAYOUT_H
#define NW_RUNTIME_LAYOUT_H

#include "kv_stream.h"
#include "model/beam.h"
#include "model/sampling.h"
#include "model/stop.h"
#include "page_pool.h"
#include "pin_form.h"
#include "trace.h"

enum {
    NW_ROW_CACHE = 64, /* embedding rows remembered: tokens repeat */
    NW_ROW_BATCH = 16, /* embedding rows read at once for a prompt */
    NW_SHOWN_MAX = NW_TEXT_MAX + NW_STOP_BYTES_MAX
};

/* What the layout depends on besides the model. */
typedef struct {
    nw_maxima   maxima;    /* columns is 0 if nothing is decoded; then so is all up to cross_pages but pinned */
    size_t      lanes;     /* sequences that are decoded together */
    size_t      sequences; /* of one request */
    size_t      choices;   /* answers that a request may bring, at least 1: what is forced is one */
    size_t      searches;  /* beam searches at once, of `beams` beams each */
    size_t      beams;
    bool        processed; /* tokens may be chosen from something else than the logits */
    bool        stops;     /* there may be stop strings */
    size_t      encoded;   /* prompts that are encoded at a time */
    size_t      requests;  /* held: in lanes, encoded, waiting */
    bool        drafted;   /* a draft model guesses */
    nw_pass     pinned;    /* the pass that repeats, whose tiles may stay: DECODE; ENCODE if nothing is decoded */
    uint32_t    self_rows, cross_rows;   /* of a page of K and V */
    size_t      self_pages, cross_pages; /* in all */
    uint32_t    self_ring;               /* pages that a request holds at most; 0: all */
    nw_kv_shape kv[NW_KV_KINDS]; /* what of K and V may be streamed; of the encoder's there are no cross_pages then */
    size_t      inputs;          /* of one encoder pass */
    uint32_t    slot_count;
    size_t      slot_bytes;   /* the largest aligned read of any tile */
    size_t      row_bytes;    /* the aligned read of one embedding row */
    size_t      region_bytes; /* pins and encoder scratch */
    size_t      align;        /* of buffers that are read into */
    nw_pinning  pinning;      /* the form of pins */
    uint32_t    io_depth;     /* reads in flight at most */
    nw_trace_options trace;
} nw_shape;

/* A step of a pass: the tile of its schedule; or before that, where K and V are streamed and the step is the first
 * behind an attention, one of the tiles that this reads. */
typedef struct {
    nw_pass pass;
    size_t  step;
    size_t  kv; /* the tile of K and V; the step's own comes when there are no more */
} nw_visit;

typedef enum { NW_SLOT_FREE, NW_SLOT_READING, NW_SLOT_READY, NW_SLOT_IN_USE } nw_slot_state;

/* A place that a tile is read into: a slot of the window, or a pin. */
typedef struct {
    nw_slot_state  state;
    nw_visit       visit;    /* what it holds */
    int            os_errno; /* of the read; 0: none */
    unsigned char *bytes;
} nw_slot;

/* A pin: a tile that stays. */
typedef struct {
    uint64_t      at;       /* offset in the region; NW_NOT_PINNED: streamed */
    nw_slot_state state;    /* FREE: empty; READY: filled */
    int           os_errno; /* of the read; not 0: its visit will report it, and nothing reads it again before */
    bool          packed;   /* it stays packed, if its tile is (nw_pin_stays_packed) */
    bool          visited;  /* a pass has had it since it was filled: from then on embedding rows may come from it */
    bool          in_slot;  /* its tile is in a slot, to be written here by the pass that comes to it */
    bool          unfit;    /* its tile has shown that it does not fit in its form: streamed */
} nw_pin;
#define NW_NOT_PINNED UINT64_MAX

/* What a draft model is asked for one lane (draft_model.h). */
typedef struct {
    size_t          lane;
    const uint32_t *input; /* [input_count] */
    size_t          input_count;
    const uint32_t *ids; /* [1 + count] the start token and what was chosen */
    size_t          count;
    size_t          want;  /* tokens, at most NW_DRAFT_MAX */
    uint32_t       *draft; /* [want] */
    size_t          got;   /* written: want, or fewer if they end with an end token */
} nw_draft_ask;

typedef struct {
    nw_forward       forward; /* its buffers; the rest is set by the session */
    float           *logits;  /* [columns, vocab_size] */
    float          **vectors; /* [tensors]: resident norms and bias tables as f32, NULL for matrices */
    nw_column       *columns; /* [columns] */
    nw_page_pool     self, cross;
    nw_kv_stream     kv_stream;             /* instead of pages */
    const nw_kv    **streamed[NW_KV_KINDS]; /* [lanes] those of the pass under way */
    float          **self_tables;           /* [requests, pages for the rows of a request's sequences] */
    float          **cross_tables;          /* [requests, pages for an input] */
    size_t           self_table_len, cross_table_len;
    uint32_t        *request_ids;            /* [requests, nw_request_ids]: inputs, and what is given of answers */
    nw_draft_ask    *asks;                   /* [lanes], with a draft model */
    size_t          *choice_lens;            /* [requests, choices] */
    nw_encode_input *encode_inputs;          /* [inputs] */
    nw_cross       **crosses;                /* [inputs] of the same prompts */
    uint32_t        *lane_ids;               /* [lanes, 1 + output]: the start token and what was chosen */
    double          *lane_logprobs;          /* [lanes, output] */
    uint16_t        *lane_paths;             /* [lanes, 2, output], with beams */
    nw_stop         *stops;                  /* [lanes] or none */
    nw_beam         *searches;               /* [searches] */
    char            *text;                   /* [NW_SHOWN_MAX] of one token */
    nw_warp_scratch  warp;                   /* this and what follows: if logits may be processed */
    float           *scores, *probabilities; /* [vocab_size] */
    float           *processor_scratch;      /* [1 + output] */
    uint32_t        *row_ids;                /* [NW_ROW_CACHE] */
    float           *row_cache;              /* [NW_ROW_CACHE, d_model] */
    unsigned char   *row_buffers;            /* [NW_ROW_BATCH, row_bytes] */
    nw_restore       restore;                /* its scratch, for packs */
    nw_trace         trace;                  /* its tables */
    nw_pin          *pins;                   /* [steps of the pinned pass] */
    nw_pin          *embed_pins;             /* [nw_embed_tiles] */
    nw_slot         *slots;
    unsigned char   *slot_bytes;
    unsigned char   *region;
    unsigned char   *encode_scratch; /* within the region, at its end */

    /* Bytes by part, for the plan. */
    size_t index_bytes, vector_bytes, activation_bytes, self_bytes, cross_bytes, window_bytes, encode_bytes;
} nw_parts;

/* Ids that a request brings: its input, and what its sequences are given of their answers. */
static inline size_t nw_request_ids(const nw_shape *s)
{
    return s->maxima.input_tokens + s->choices * s->maxima.output_tokens;
}

/* Carves everything. p->forward's config, tensors and maxima are set from the model and the shape; the encoder's
 * scratch is carved within the region, at its end. */
void nw_parts_layout(nw_parts *p, nw_arena *a, const nw_model *m, const nw_shape *s);

/* Bytes of an encoder pass's scratch. */
size_t nw_parts_encode_bytes(const nw_model *m, const nw_maxima *maxima);

/* True for the norms and bias tables that a session keeps resident as f32. */
bool nw_vector_needed(const nw_model *m, nw_pass pinned, uint32_t tensor);

/* Tiles of the embedding that may be pinned beside the schedule: none if the head is tied to it, and none if nothing is
 * decoded, since a text takes a few of its rows where the table may be larger than the encoder. */
size_t nw_embed_tiles(const nw_model *m, nw_pass pinned);

#endif
