/* A sentencepiece model file (protobuf ModelProto), read without the library and trusted in nothing.
 *
 * The library is handed only files that passed here: it crashes on many others. Our own unigram encoder and the piece
 * table are made from this reading.
 */
#ifndef NW_MODEL_SPIECE_FILE_H
#define NW_MODEL_SPIECE_FILE_H

#include "base/memory.h"

#define NW_SPIECE_FILE_BYTES_MAX ((size_t)64 << 20)
#define NW_SPIECE_PIECES_MAX 1000000u
#define NW_SPIECE_PIECE_BYTES_MAX 8192u

typedef enum {
    NW_PIECE_NORMAL = 1,
    NW_PIECE_UNKNOWN,
    NW_PIECE_CONTROL,
    NW_PIECE_USER,
    NW_PIECE_UNUSED,
    NW_PIECE_BYTE,
} nw_piece_type;

typedef struct {
    const unsigned char *text; /* in the file; valid UTF-8 without NUL */
    uint32_t             len;  /* bytes, at least 1 */
    nw_piece_type        type;
    float                score;
    unsigned char        byte; /* of an NW_PIECE_BYTE */
} nw_spiece_piece;

/* What was read; points into the file's bytes. */
typedef struct {
    const unsigned char *bytes;
    size_t               len;
    uint32_t             piece_count;
    uint64_t             text_bytes;
    uint32_t             unk_id;
    bool                 bpe; /* otherwise unigram */
    bool                 byte_fallback;
    bool                 add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
    bool                 space_as_suffix; /* the dummy prefix goes to the end */
    const unsigned char *unk_surface;     /* what decoding writes for the unknown piece */
    size_t               unk_surface_len;
    const unsigned char *charsmap; /* NULL: none */
    size_t               charsmap_len;
} nw_spiece_file;

/* Reads and checks the whole file. Errors: NW_E_TOKENIZER with `name` and what is wrong; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_spiece_read(nw_memory *mem, const char *name, const void *bytes, size_t len, nw_spiece_file *ret,
                                   nw_error *err);

/* Walks over the pieces of a file that nw_spiece_read accepted; *at starts at 0. False after the last. */
bool nw_spiece_next(const nw_spiece_file *file, size_t *at, nw_spiece_piece *ret);

/* Checks a precompiled_charsmap, so that no text can lead the library's walk out of the trie or out of the strings. */
NW_MUST_USE nw_code nw_charsmap_check(nw_memory *mem, const char *name, const unsigned char *map, size_t len,
                                      nw_error *err);

/* The longest key of a checked charsmap that the text begins with: its bytes, and what replaces it. 0: none. */
size_t nw_charsmap_match(const unsigned char *map, const unsigned char *text, size_t len, const char **ret_replacement);

#endif
