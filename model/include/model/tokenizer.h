/* Text to ids and back, as the reference's T5 tokenizers do it.
 *
 * Two things with different lifetimes. The **tokenizer** encodes text: it holds the vocabulary for searching (BPE: the
 * sentencepiece library's model, which is large), and is closed as soon as the prompts are encoded. The **pieces**
 * decode ids: a table of a few hundred kB that lives as long as the model. Both are made from the same bytes, which the
 * caller has read; nothing here opens files.
 *
 * Kinds     sentencepiece unigram (our own encoder: Debian's library breaks ties unlike the reference) or BPE (the
 *           library); ByT5: id = byte + 3, no file.
 * Special   </s>, <pad>, <unk> and the extra ids (<extra_id_0> is the highest id and they count down; in ByT5 it is 259
 * and they count up). Text is split at them and each part is tokenised as a text of its own. Spaces beside extra ids
 * are dropped (not in ByT5); for other tokens the documents say so.
 */
#ifndef NW_MODEL_TOKENIZER_H
#define NW_MODEL_TOKENIZER_H

#include "base/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nw_tokenizer nw_tokenizer;
typedef struct nw_pieces    nw_pieces;

/* What a model's files say. Each document may be absent (NULL, 0). Bytes are borrowed during the calls only. */
typedef struct {
    const char *name;   /* path of the sentencepiece file, for messages; "ByT5" when there is none */
    const void *spiece; /* spiece.model; NULL: ByT5 */
    size_t      spiece_bytes;
    const char *config; /* tokenizer_config.json */
    size_t      config_bytes;
    const char *special; /* special_tokens_map.json */
    size_t      special_bytes;
    const char *added; /* added_tokens.json */
    size_t      added_bytes;
    uint32_t    vocab_size; /* rows of the embedding: no id may reach it */
    uint32_t    eos_id, pad_id;
} nw_tokenizer_files;

/* What a look at the files alone tells, so that a plan can count the tokenizer without loading it. */
typedef struct {
    uint32_t piece_count; /* in the sentencepiece file; 0 for ByT5 */
    uint64_t file_bytes;
    uint64_t text_bytes; /* of all pieces */
    uint32_t extra_ids;
    uint64_t special_bytes; /* that the special tokens' tables take */
    uint32_t id_end;        /* 1 + the highest id that stands for anything; the table of pieces goes so far */
    bool     library; /* a BPE model: the sentencepiece library will hold it */
} nw_tokenizer_facts;

/* Checks the sentencepiece file (FAULTS: Debian's library crashes on hostile ones): protobuf structure, piece lengths
 * and types, UTF-8, NUL, finite scores, model type, the bounds of the charsmap's trie. Everything below calls it first.
 * Errors  NW_E_TOKENIZER naming the file and what is wrong. Allocates at most 1 MiB from `mem`. */
NW_MUST_USE nw_code nw_tokenizer_check(nw_memory *mem, const nw_tokenizer_files *files, nw_tokenizer_facts *ret,
                                       nw_error *err);

/* Resident bytes that loading, encoding and the piece table take at most, from the facts (a declared figure; tests hold
 * the code and the library to it). `peak` while loading and encoding a short text; `kept` is what remains with the
 * tokenizer open; `pieces` of the table. Encoding takes `per_text_byte` more for each byte of the text, until it is
 * done. */
typedef struct {
    uint64_t peak, kept, pieces;
    uint64_t per_text_byte;
} nw_tokenizer_cost;
nw_tokenizer_cost nw_tokenizer_declared(const nw_tokenizer_facts *facts);

/* Makes ready to encode. Memory from `mem`, NW_TAG_TOKENIZER; for BPE the library's own (the named allowance).
 * Errors  NW_E_TOKENIZER, NW_E_MEMORY, NW_E_BUDGET. No C++ exception leaves. */
NW_MUST_USE nw_code nw_tokenizer_open(nw_memory *mem, const nw_tokenizer_files *files, nw_tokenizer **ret_tokenizer,
                                      nw_error *err);
nw_tokenizer       *nw_tokenizer_close(nw_tokenizer *tokenizer); /* takes NULL; returns NULL */

/* Encodes `len` bytes of text (any bytes; invalid UTF-8 and NUL are handled as the library does) and appends the end
 * token.
 *
 * ids, cap   room for cap ids; at most cap are written.
 * ret_count  how many ids there are in all; more than cap means that the room did not do.
 * Errors     NW_E_TOKENIZER; NW_E_MEMORY, NW_E_BUDGET: `mem` does not have the room that the text needs. */
NW_MUST_USE nw_code nw_tokenizer_encode(nw_tokenizer *tokenizer, const char *text, size_t len, uint32_t *ids,
                                        size_t cap, size_t *ret_count, nw_error *err);

/* The distinct characters of the text that the vocabulary lacks (that became <unk>), as UTF-8 separated by spaces, in
 * order of appearance, at most as many as fit in buf with its NUL; control characters are written \x00 to \x9F. Returns
 * how many there are (0: none, or there was no memory to tell). */
size_t nw_tokenizer_unknown(nw_tokenizer *tokenizer, const char *text, size_t len, char *buf, size_t cap);

/* The table for decoding. Errors as nw_tokenizer_open. Memory from `mem`, NW_TAG_TOKENIZER. */
NW_MUST_USE nw_code nw_pieces_open(nw_memory *mem, const nw_tokenizer_files *files, nw_pieces **ret_pieces,
                                   nw_error *err);
nw_pieces          *nw_pieces_close(nw_pieces *pieces);

/* The raw piece of an id ("▁the", "<extra_id_0>", "<0x0A>"); *ret_len bytes, not NUL-terminated, belongs to the table.
 * Ids without a piece (padding rows of the embedding) give length 0. */
const char *nw_pieces_raw(const nw_pieces *pieces, uint32_t id, size_t *ret_len);

/* Streaming decoding: text comes out in whole UTF-8 characters. Zero-initialise. */
typedef struct {
    bool          started; /* something was written: a leading space is dropped only before */
    unsigned char held[4]; /* bytes of a character that is not complete yet (byte pieces, ByT5) */
    uint32_t      held_count;
} nw_decoder;

/* Appends the text of one id to buf (at most `cap` bytes, not NUL-terminated) and returns its bytes.
 * Control pieces, pad and eos give nothing; bytes that are no UTF-8 give U+FFFD as the reference does (errors="ignore"
 * for ByT5). cap of nw_pieces_text_max(pieces) always suffices. */
size_t nw_pieces_text_max(const nw_pieces *pieces);
size_t nw_pieces_decode(const nw_pieces *pieces, nw_decoder *decoder, uint32_t id, char *buf, size_t cap);
/* What is held at the end. */
size_t nw_pieces_decode_end(const nw_pieces *pieces, nw_decoder *decoder, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
