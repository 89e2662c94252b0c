/* The inside of an nw_model: where the tensors that the configuration needs were found, and the schedules. */
#ifndef NW_RUNTIME_MODEL_STATE_H
#define NW_RUNTIME_MODEL_STATE_H

#include "hooks.h"
#include "loader/checkpoint.h"
#include "model/forward.h"
#include "model/tokenizer.h"
#include "narrows.h"

/* A needed tensor's place in the files. */
typedef struct {
    const nw_tensor *tensor;
    uint64_t         row_bytes; /* of plain rows, as they are or restored */
    nw_cut           cut;
    uint32_t         tile_first, stride; /* of a pack: its first tile there; bytes of a strip that is read by itself */
} nw_place;

struct nw_model {
    nw_memory      memory;
    nw_log         log;
    nw_hooks      *hooks;
    nw_io_choice   io;
    uint64_t       budget_bytes;
    char          *path;      /* of the directory or file */
    char          *tokenizer; /* --tokenizer, or NULL */
    nw_checkpoint *checkpoint;
    char          *name_prefix; /* before the names of the T5's tensors in the files; "" is usual */
    char          *config_path; /* NULL: inferred from the tensors */
    nw_config      config;
    nw_tensors     tensors;
    nw_place      *places; /* [tensors.count] */
    nw_step       *steps[NW_PASS_COUNT];
    size_t         step_count[NW_PASS_COUNT];
    uint64_t       open_bytes;      /* read while opening */
    uint64_t       tokenizer_bytes; /* read for the tokenizer, in all */
    double         open_seconds;

    /* The tokenizer: facts and pieces are made from the files once, when first asked for. */
    nw_tokenizer_facts facts;
    bool               facts_known, has_tokenizer;
    char              *tokenizer_path;    /* of the sentencepiece file; NULL: none */
    char              *tokenizer_problem; /* why there is none to use; NULL: there is, or it was not looked at */
    nw_pieces         *pieces;
    nw_tokenizer      *encoder; /* loaded while prompts are encoded */
};

/* nw_model_decode_ids, and whether the text has come to a stop string. */
bool nw_decode_ids_until(nw_model *m, const nw_generation_settings *settings, const uint32_t *ids, size_t count,
                         bool (*write)(void *user, const char *text, size_t len), void *user, bool *ret_stopped);

/* A tensor by its name in a T5, whatever stands in front of it in the files; NULL: not there. */
const nw_tensor *nw_model_find(const nw_model *m, const char *name);
nw_tensor_lookup nw_model_lookup(nw_model *m); /* the same for the model library; borrows m */

/* Which of the model's needs a tensor of the checkpoint serves, the first if several; UINT32_MAX: none. */
uint32_t nw_model_need(const nw_model *m, const nw_tensor *t);

/* Read as it stands when a session opens: a norm, or a bias table, which has two dimensions. */
bool nw_model_is_vector(const nw_model *m, const nw_tensor *t);

/* The part of a tensor's name behind what stands in front of all; NULL: a tensor of another network. */
const char *nw_model_tensor_name(const nw_model *m, const nw_tensor *t);

/* Finds what stands in front of the names, and refuses what is no T5: NW_E_UNSUPPORTED by its family's name where it
 * is known, for two T5s in one file, and for types that cannot be read. */
NW_MUST_USE nw_code nw_model_names_open(nw_model *m, nw_error *err);

/* Refuses tensors of the T5 that the configuration, as settled, has no place for: NW_E_UNSUPPORTED. */
NW_MUST_USE nw_code nw_model_names_check(const nw_model *m, nw_error *err);

/* NW_E_UNSUPPORTED unless the tensor's type can be computed with. */
NW_MUST_USE nw_code nw_model_check_type(const nw_model *m, const nw_tensor *t, nw_error *err);

/* A copy of a string, counted as index; freed with its strlen() + 1. NULL: no memory. Freeing takes NULL. */
char *nw_model_string(nw_model *m, const char *text);
void  nw_model_string_free(nw_model *m, char *text);

/* The aligned read that fetches one tile, and the file it is from. */
nw_extent      nw_model_extent(const nw_model *m, nw_step step);
const nw_file *nw_model_tile_file(const nw_model *m, nw_step step);
const char    *nw_model_tile_path(const nw_model *m, nw_step step);

/* Where a row of the embedding is: the tile, the strip in it, the row in that. */
typedef struct {
    nw_step  step;
    uint32_t strip;
    size_t   row;
} nw_row_place;
nw_row_place nw_model_row_place(const nw_model *m, uint32_t id);

/* The aligned read that fetches one row of the embedding (of a pack: the strip with it): always the same number of
 * bytes, whatever the row's place; bytes_needed ends with the row (the strip), which begins at `skip`. */
nw_extent nw_model_row_extent(const nw_model *m, uint32_t id);

/* Rows of a tile. */
static inline uint64_t nw_model_tile_rows(const nw_model *m, nw_step step)
{
    return nw_cut_rows(&m->places[step.tensor].cut, step.tile);
}

/* The model was opened from headers alone, perhaps long ago: NW_E_IO if what they said is no longer so. */
NW_MUST_USE nw_code nw_model_check_files(const nw_model *m, nw_error *err);

/* A reader for headers and small files: opened for one purpose, closed again. */
NW_MUST_USE nw_code nw_model_io_open(nw_model *m, nw_io **ret_io, nw_error *err);

/* Makes the table of pieces if it is not there yet, so that later decoding allocates nothing. NW_E_TOKENIZER: the model
 * has no usable tokenizer. */
NW_MUST_USE nw_code nw_model_text_load(nw_model *m, nw_error *err);

/* What the tokenizer costs and how many bytes its files have, from the files alone; zero when the model has none. */
NW_MUST_USE nw_code nw_model_tokenizer_facts(nw_model *m, nw_tokenizer_cost *ret_cost, uint64_t *ret_file_bytes,
                                             nw_error *err);

#endif
