/* narrows: runs a T5 model that is larger than the memory it is given.
 *
 * A **model** is what the files say: configuration, tensors, tokenizer. It is opened from headers alone. A **session**
 * is a model at work under a budget: worker threads, a window over the weights, K and V, and the requests that are
 * being served.
 *
 *     nw_model   *model;   nw_model_open(&(nw_model_options){.path = "flan-t5-xl"}, &model, &err);
 *     nw_session *session; nw_session_open(model, &(nw_session_options){.budget_bytes = 1 << 30}, &session, &err);
 *     nw_session_generate(session, &(nw_request){.input_ids = ids, .input_count = n}, &result, &err);
 *
 * Errors are values (base/error.h). No function prints, exits or keeps global state. A session belongs to the thread
 * that opened it (its io_uring is that thread's), and a model to one thread at a time; only nw_session_stop may be
 * called from anywhere. Callbacks of a session may submit and cancel requests; what asks for another pass is
 * NW_E_ARG there. Options structs are zero-initialised: zero is each field's documented default.
 *
 * The budget bounds the resident memory of the whole process (VmHWM), not just of this library: what the program around
 * it has resident when a session is opened is counted in. A program that allocates afterwards must leave itself room by
 * asking for less.
 */
#ifndef NARROWS_H
#define NARROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/generation.h"
#include "base/log.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NW_API __attribute__((visibility("default")))

/* "0.1.0" */
NW_API const char *nw_version(void);

/* Prepares the process for a tight budget; a program calls it first in main(), if at all: one malloc arena with fixed
 * thresholds, no transparent huge pages but where asked for. Changes settings of the whole process. */
NW_API void nw_process_setup(void);

/* ---- sizes and the machine --------------------------------------------------------------------------------------- */

/* What the machine, and every control group above this process, leave for it, in bytes. Reclaimable page cache counts
 * as free. */
typedef struct {
    uint64_t available; /* what could be used now */
    uint64_t total;     /* the smallest limit: of a control group, or the machine's memory */
    char     limited_by[96]; /* what `available` comes from, for people: "MemAvailable", "memory.max of /a/b" */
} nw_machine_memory;
NW_API void nw_machine_memory_read(nw_machine_memory *ret);

/* The budget that `auto` means: what is available less a reserve of an eighth, at least 64 MiB, for the rest of the
 * system. */
NW_API uint64_t nw_budget_auto(const nw_machine_memory *memory);

/* Parses "900M", "1.5G", "2GB" (10^9 based), "2GiB", "60%" (of what is available), "auto". False if it is none of
 * these. */
NW_API bool nw_budget_parse(const char *text, const nw_machine_memory *memory, uint64_t *ret_bytes);

/* Parses a size as above, without % and auto. */
NW_API bool nw_bytes_parse(const char *text, uint64_t *ret_bytes);

/* "192M", "1.5G"; with `up`, rounded up. Returns buf. */
NW_API const char *nw_bytes_format(uint64_t bytes, bool up, char buf[16]);

/* Resident memory of this process now and at its highest, in bytes (VmRSS, VmHWM). */
NW_API uint64_t nw_process_resident(void);
NW_API uint64_t nw_process_peak(void);

/* ---- model ------------------------------------------------------------------------------------------------------- */

typedef struct nw_model   nw_model;
typedef struct nw_session nw_session; /* below */

/* For the project's own tests: fault points and the fake device (runtime/hooks.h). NULL elsewhere. */
typedef struct nw_hooks nw_hooks;

/* How files are read: io_uring, or a pool of threads; AUTO takes io_uring where the kernel allows it. */
typedef enum { NW_READ_AUTO, NW_READ_URING, NW_READ_THREADS } nw_read_with;

typedef struct {
    const char *path;         /* a directory, a .safetensors or .bin file, or owner/name in the Hugging Face cache */
    const char *config;       /* a config.json; NULL: beside the weights, and for a file without one, inferred */
    const char *tokenizer;    /* a spiece.model or a directory with one; NULL: beside the model */
    uint64_t    budget_bytes; /* the process's budget: bounds parsing and the tokenizer; 0: none */
    nw_read_with io;
    nw_log      log;
    nw_hooks   *hooks;
} nw_model_options;

/* Opens a model from its headers; no weights are read. What is inferred or assumed about a file without config.json is
 * logged as warnings. Whatever stands in front of all of a T5's tensor names is stripped; tensors of other networks in
 * the same file are ignored; a model that computes anything but a T5 is refused, by its family's name if it is known.
 * Errors  NW_E_ARG (no such model), NW_E_IO, NW_E_FORMAT, NW_E_UNSUPPORTED, NW_E_BUDGET, NW_E_MEMORY. */
NW_API NW_MUST_USE nw_code nw_model_open(const nw_model_options *options, nw_model **ret_model, nw_error *err);
NW_API nw_model *nw_model_close(nw_model *model); /* after its sessions; takes NULL; returns NULL */

enum {
    NW_STORED_TYPES = 5, /* f32, bf16, f16, q8, q4 */
    NW_STORED_FORMS = 6, /* plain, packed, slim3, slim4, q8, q4 */
};

/* What a model is, for people and programs. Strings belong to the model. */
typedef struct {
    const char *path;    /* of the directory or file */
    const char *family;  /* "T5 v1.0", "T5 v1.1 / Flan-T5", "mT5", "UMT5", "ByT5", ... as far as the files tell */
    const char *model_type;
    const char *config_path; /* of the configuration; NULL: inferred from the tensors */
    const char *name_prefix; /* what stands before a T5's names of tensors in the files; usually "" */
    uint32_t    vocab_size, d_model, d_kv, d_ff, heads, encoder_blocks, decoder_blocks;
    uint32_t    relative_buckets, relative_distance;
    const char *activation; /* "gated-gelu", "relu", ... */
    bool        head_tied, bias_per_block;
    uint32_t    pad_id, start_id, eos_id;
    uint64_t    parameters;      /* weights that the model has, each counted once */
    uint64_t    weight_bytes;    /* of these in the files */
    /* Of an encoder pass, of cross-attention K and V, of one decoded token; of a pack with what lies between strips. */
    uint64_t    encoder_bytes, cross_bytes, decode_bytes;
    uint64_t    type_bytes[NW_STORED_TYPES]; /* f32, bf16, f16; of packs also q8, q4 */
    bool        is_pack;         /* bytes are then those that are stored */
    size_t      file_count;
    size_t      tensor_count;    /* in the files, used or not */
} nw_model_info;
NW_API void nw_model_describe(const nw_model *model, nw_model_info *ret);

typedef struct {
    const char *name, *dtype, *file; /* as the files have them; belong to the model */
    uint32_t    dim_count;
    uint64_t    dims[8];
    uint64_t    bytes, offset; /* offset from the start of the file */
    bool        used;          /* the model needs it */
} nw_tensor_info;
NW_API bool        nw_model_tensor(const nw_model *model, size_t index, nw_tensor_info *ret); /* false: no more */
NW_API const char *nw_model_file(const nw_model *model, size_t index, uint64_t *ret_bytes);    /* NULL: no more */
/* A block that a file holds, or a part of one: "encoder.3", "decoder" (its norm), "embedding", "head" (and with it the
 * embedding, if they are tied), "other" (what the model does not run with); of packs also "cross.3". In the order of a
 * run. Returns buf, or a string that belongs to the model; NULL: no more. */
NW_API const char *nw_model_block(const nw_model *model, size_t file, size_t index, char buf[32]);

/* What a pack says of itself: of all its tensors, used or not. Strings belong to the model. */
typedef struct {
    const char *name, *tool, *compress; /* what was packed, what packed it, "packed", "slim" or "off" */
    bool        lossy;                  /* some values are not the checkpoint's */
    bool        lossy_type[NW_STORED_TYPES];   /* those of some tensor that is stored so */
    uint64_t    bytes;                         /* of the index and all shards */
    uint64_t    stored_bytes[NW_STORED_TYPES]; /* f32, bf16, f16, q8, q4: of the tensors that are stored so */
    uint64_t    source_bytes[NW_STORED_TYPES]; /* what these tensors had in the checkpoint */
    uint64_t    form_bytes[NW_STORED_FORMS];   /* plain, packed, slim3, slim4, q8, q4: of the strips */
    size_t      kept_count; /* matrices of a pack with q8 or q4 that keep their type: their rows have no whole blocks */
} nw_pack_info;
NW_API bool        nw_model_pack_describe(const nw_model *model, nw_pack_info *ret); /* false: it is no pack */
NW_API bool        nw_model_pack_kept(const nw_model *model, size_t tensor); /* tensor: as nw_model_tensor counts */

/* ---- unpack ------------------------------------------------------------------------------------------------------ */

/* q8, q4: lossy, in blocks of 32 weights of a row with one scale; for packs only. */
typedef enum { NW_TYPE_KEEP, NW_TYPE_F32, NW_TYPE_BF16, NW_TYPE_F16, NW_TYPE_Q8, NW_TYPE_Q4 } nw_type;

typedef struct {
    const char *dir;             /* where to; new, or an empty directory */
    uint64_t    shard_bytes_max; /* of weights in a file; 0: 2 GB. A T5 block is not split unless it alone is larger */
    nw_type     type;            /* of the weights written; KEEP: each as it is */
    uint64_t    budget_bytes;    /* of the process; 0: what it takes, some 20 MiB */
    /* Called now and then with bytes of weights done, and in all; returning false ends the work (NW_E_CANCELLED) with
     * nothing left. May be NULL. */
    bool (*on_progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} nw_unpack_options;

typedef struct {
    uint64_t read_bytes, written_bytes;
    uint32_t shard_count;
    size_t   tensor_count;
    size_t   alias_count; /* names of tensors that are written under another name: the metadata says which */
    uint64_t converted;   /* weights whose type has changed */
    uint64_t rounded;     /* of these, how many have lost bits */
    bool     lossy;       /* the model is a pack whose weights are not all those that were packed */
} nw_unpack_result;

/* Writes a model as Hugging Face safetensors, with its configuration (or what was inferred) and tokenizer files: every
 * tensor of the checkpoint, used or not, byte for byte unless converted; of a file whose T5 has a prefix before its
 * names, the tensors with that prefix, without it. A pack's tensors get back the type and the bytes that they had; the
 * lossy ones keep the type they are stored in, and q8 and q4 become f32. Atomic: the directory is there when all of it
 * is on the disk.
 * Errors  NW_E_IO (also: exists, no room, a damaged pack), NW_E_FORMAT, NW_E_BUDGET with bytes_needed, NW_E_MEMORY,
 *         NW_E_CANCELLED; NW_E_ARG: a weight is too large for f16. */
NW_API NW_MUST_USE nw_code nw_model_unpack(nw_model *model, const nw_unpack_options *options, nw_unpack_result *ret,
                                           nw_error *err);

/* ---- pack -------------------------------------------------------------------------------------------------------- */

/* PACKED: smallest. SLIM: a little larger, multiplied as it is; for bf16, all else is packed. OFF: plain. */
typedef enum { NW_COMPRESS_PACKED, NW_COMPRESS_SLIM, NW_COMPRESS_OFF } nw_compress;

/* What packs of a model would be, from a sample of its strips. */
typedef struct {
    uint64_t weights;                        /* of matrices */
    uint64_t plain_bytes, plain_token_bytes; /* of all weights now, and of those of one decoded token */
    /* [NW_TYPE_KEEP], [NW_TYPE_BF16], [NW_TYPE_Q8], [NW_TYPE_Q4]; others are 0. Packed, in bytes. */
    uint64_t bytes[NW_TYPE_Q4 + 1], token_bytes[NW_TYPE_Q4 + 1];
    bool     bf16_in_f32; /* every f32 that was looked at is a bf16: --dtype bf16 would lose nothing */
} nw_pack_estimate;
typedef struct {
    const char *dir;             /* where to; new, or an empty directory */
    uint64_t    shard_bytes_max; /* of one file; 0: 2 GB. A T5 block is not split unless it alone is larger */
    nw_type     type;            /* of the weights stored; KEEP: each as it is */
    nw_compress compress;
    unsigned    threads;      /* 0: as many as this process may use */
    uint64_t    budget_bytes; /* of the process; 0: what it takes */
    /* As nw_unpack_options. */
    bool (*on_progress)(void *user, uint64_t done, uint64_t total);
    /* Called once with what packs of the model would be: DST and the budget will do, and nothing has been written. May
     * be NULL. */
    void (*on_estimate)(void *user, const nw_pack_estimate *estimate);
    void *user;
} nw_pack_options;

typedef struct {
    uint64_t read_bytes;
    uint64_t source_bytes, stored_bytes; /* of the tensors: as they were, and as they are */
    uint64_t rounded;                    /* weights that have lost bits; with q8 and q4 not counted: all may have */
    size_t   tensor_count;
    size_t   kept_count;    /* matrices whose rows have no whole blocks for q8 or q4: they keep their type */
    size_t   alias_count;   /* names of tensors that are stored under another name: the manifest says which */
    size_t   skipped_count; /* tensors of types that cannot be run, which a pack does not hold */
    uint32_t shard_count;
} nw_pack_result;

/* Writes a model as a pack: the tiles in the order of a run, with a checksum for each strip (docs/pack-format.md), and
 * its configuration and tokenizer files. Runs as the model does; if nothing was converted, with the same bits.
 * Errors  as nw_model_unpack; NW_E_ARG: the model is a pack. */
NW_API NW_MUST_USE nw_code nw_model_pack(nw_model *model, const nw_pack_options *options, nw_pack_result *ret,
                                         nw_error *err);

/* Reads one strip of every matrix. Errors: NW_E_ARG: the model is a pack; NW_E_IO; NW_E_MEMORY; NW_E_BUDGET. */
NW_API NW_MUST_USE nw_code nw_model_pack_estimate(nw_model *model, nw_pack_estimate *ret, nw_error *err);

/* Free space that a pack is not begun without: what the estimate says of its type and compression, and a sixteenth. */
NW_API uint64_t nw_pack_space(const nw_pack_estimate *estimate, nw_type type, nw_compress compress);

/* One fault of a pack. Lives during the call. */
typedef struct {
    const char *path;   /* of the shard or file */
    const char *tensor; /* NULL: of no strip: of a header, of what lies between strips, of a file beside */
    const char *block;  /* "encoder.3", "decoder.0", "embedding", "head", ... by the tensor's name; NULL with it */
    uint32_t    tile, strip;          /* of the tensor, of the tile */
    uint64_t    row_first, row_count; /* of the tensor, in the strip */
    const char *why;
} nw_pack_bad;

typedef struct {
    uint64_t     budget_bytes; /* of the process; 0: what it takes, some 20 MiB */
    nw_read_with io;
    nw_log       log;
    nw_hooks    *hooks;
    void (*on_fault)(void *user, const nw_pack_bad *bad); /* called for each; may be NULL */
    bool (*on_progress)(void *user, uint64_t done, uint64_t total); /* as nw_unpack_options */
    void *user;
} nw_pack_check_options;

typedef struct {
    uint64_t fault_count;
    uint64_t bytes, read_bytes; /* of the pack; what was read */
    size_t   shard_count, tensor_count;
} nw_pack_check_result;

/* Reads all of a pack, in order, and compares every checksum.
 * path    a directory, or owner/name in the Hugging Face cache.
 * Errors  what keeps it from looking: NW_E_ARG (no such path), NW_E_FORMAT (no pack, cut short, or not telling the
 *         truth), NW_E_UNSUPPORTED (of another time), NW_E_IO (unreadable, or manifest, index or a shard's header is
 *         damaged), NW_E_BUDGET with bytes_needed, NW_E_MEMORY, NW_E_CANCELLED. Faults are none: they are counted. */
NW_API NW_MUST_USE nw_code nw_pack_check(const char *path, const nw_pack_check_options *options,
                                         nw_pack_check_result *ret, nw_error *err);

/* ---- tokenizer --------------------------------------------------------------------------------------------------- */

/* What the tokenizer's files say. kind: "sentencepiece", "bytes" (ByT5), or "none". */
typedef struct {
    const char *kind;
    const char *path; /* NULL if there is no file */
    uint32_t    pieces, extra_ids;
    const char *problem; /* kind "none": what is missing or wrong; otherwise NULL. Belongs to the model */
} nw_tokenizer_info;
NW_API NW_MUST_USE nw_code nw_model_tokenizer_describe(nw_model *model, nw_tokenizer_info *ret, nw_error *err);

/* Text to ids, the end token appended. Loads the tokenizer if it is not loaded.
 * ids, cap   room; at most cap ids are written.   ret_count  how many there are in all.
 * Errors     NW_E_TOKENIZER; NW_E_BUDGET (loading it would not fit); NW_E_IO. */
NW_API NW_MUST_USE nw_code nw_model_encode_text(nw_model *model, const char *text, size_t len, uint32_t *ids,
                                                size_t cap, size_t *ret_count, nw_error *err);

/* The characters of a text that the vocabulary lacks, as UTF-8 separated by spaces; returns how many. The tokenizer
 * must be loaded. */
NW_API size_t nw_model_unknown_text(nw_model *model, const char *text, size_t len, char *buf, size_t cap);

/* Gives the tokenizer's memory back; ids can still be decoded. nw_session_open does it unless keep_tokenizer is set. */
NW_API void nw_model_tokenizer_release(nw_model *model);

/* The raw piece of an id; length 0 if it has none. Needs no loaded tokenizer. Returns NULL on error (the files are
 * unusable). */
NW_API const char *nw_model_piece(nw_model *model, uint32_t id, size_t *ret_len, nw_error *err);

/* Ids to text, streaming: what is written is always whole UTF-8 characters. Zero-initialise a decoder per sequence. */
typedef struct {
    bool          started;
    unsigned char held[4];
    uint32_t      held_count;
} nw_text;
/* Appends the text of one id, or with id NW_TEXT_END what is held back, to buf; returns its bytes, at most cap.
 * NW_TEXT_MAX of room always suffices. Without a tokenizer it writes nothing. */
#define NW_TEXT_END UINT32_MAX
#define NW_TEXT_MAX 16384
NW_API size_t nw_model_decode_text(nw_model *model, nw_text *text, uint32_t id, char *buf, size_t cap);

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* The settings that a model's files ask for: generate()'s defaults, over them generation_config.json, or where there is
 * none the same keys of config.json, over them those of `task` (task_specific_params of config.json; NULL: none). The
 * end tokens and the start token are filled in.
 * Errors  NW_E_FORMAT, NW_E_UNSUPPORTED (base/generation_parse.h); NW_E_ARG: no such task; NW_E_IO; NW_E_MEMORY. */
NW_API NW_MUST_USE nw_code nw_model_generation(nw_model *model, const char *task, nw_generation_settings *ret,
                                               nw_error *err);

/* The text of ids, with the settings' stop strings left out and all that follows (settings NULL: none), piece by piece.
 * write returning false ends it. Returns whether all was written. */
NW_API bool nw_model_decode_ids(nw_model *model, const nw_generation_settings *settings, const uint32_t *ids,
                                size_t count, bool (*write)(void *user, const char *text, size_t len), void *user);

/* ---- plan -------------------------------------------------------------------------------------------------------- */

/* In which form weights stay resident: as they are stored (of a checkpoint: plain), slim (bf16 only: holds 1.4 times as
 * much, and is multiplied faster by AVX-512 and AVX2), or plain. AUTO: slim where these are to be had, but of a pack as
 * it is stored where its disk makes that faster (disk_rate). Never changes a bit of the output. */
typedef enum { NW_PINS_AUTO, NW_PINS_STORED, NW_PINS_SLIM, NW_PINS_PLAIN } nw_pin_form;

typedef struct {
    uint64_t     budget_bytes;      /* 0: auto */
    size_t       max_input_tokens;  /* of one prompt, end token included; 0: 512 */
    size_t       max_output_tokens; /* new tokens of one answer; 0: 256 */
    size_t       max_lanes;         /* sequences that advance together; 0: 1 */
    size_t       max_columns;       /* tokens of one decode pass, guessed ones included; 0: max_lanes */
    size_t       max_choices;       /* of one request (nw_request.choice_ids); each takes a lane; 0: none */
    size_t       max_encode_tokens; /* of all prompts of one encoder pass, pads included; 0: max_input_tokens */
    size_t       max_encoded_ahead; /* prompts that may be encoded before there is a lane for them; 0: none */
    size_t       max_encoded_tokens; /* of all prompts that are encoded at a time; 0: as many as they may have */
    size_t       max_waiting;        /* requests that may wait beside those above; 0: 4 */
    /* What requests will ask for at most: its beams, samples, processors and stop strings are what memory is made for.
     * A request may have other settings that need no more. Not used after opening; NULL: greedy search, no more. */
    const nw_generation_settings *generation;
    /* A session of a small model of the same vocabulary, with as many lanes and tokens, that guesses what comes next
     * (prompt lookup does otherwise): its memory counts in the budget. Not closed, and not to be used otherwise, before
     * this session is closed. Never changes a bit of the output; pays with max_columns above max_lanes. NULL: none. */
    nw_session  *draft;
    bool         encode_only;       /* nw_session_encode is all that will be called: nothing for decoding takes memory,
                                     * the two maxima above are of no effect, and the encoder's tiles are what stays
                                     * resident; always so for a model without a decoder */
    unsigned     threads;           /* 0: as many as this process may use (affinity, CPU quota) */
    nw_read_with io;
    uint64_t     window_bytes;   /* 0: chosen */
    uint64_t     pins_bytes;     /* most that may be kept resident; 0: what fits */
    bool         pins_off;       /* keep nothing */
    nw_pin_form  pin_form;
    unsigned     queue_depth;    /* tiles that are being read at once, at most; 0: as many as the window has slots */
    bool         prefetch_off;   /* never read further than the next tile: to see what prefetch is worth */
    bool         kv_on_disk;     /* keep K and V in a scratch file, even if they would fit in memory: the encoder's, and
                                  * an answer's but for its last positions */
    bool         kv_in_memory;   /* never do, even where passes would read less or the budget has no room for them: of a
                                  * session that is to be another one's draft. Goes over kv_on_disk */
    const char  *scratch;        /* directory of that file; NULL: $TMPDIR, /var/tmp or the current one, whichever is on
                                  * a disk and has the room */
    bool         force;          /* accept a budget above what the machine has available */
    bool         verify_off;     /* do not compare the checksums of a pack's strips: to see what they cost */
    bool         keep_tokenizer; /* more text will be encoded while the session is open */
    const char  *kernels;        /* "portable", "avx2", ...; NULL: the fastest */
    bool         trace;          /* sum up where the time goes (nw_session_times); costs up to 1 % of it */
    size_t       trace_events;   /* the same, and keep the first so many events (nw_session_event), of the budget */
    double       disk_rate, memory_rate; /* bytes a second, for predictions; 0: an assumption (nw_plan says which).
                                          * Pins of a pack stay packed where that is faster with the disk's rate: with
                                          * this one, or with what a session that decodes measures in its first encoder
                                          * pass, if that reads much (128 MiB) */
    nw_log       log;
    nw_hooks    *hooks;
} nw_session_options;

/* Where the budget goes, and what the run will read. All in bytes unless named otherwise. */
typedef struct {
    uint64_t budget;
    uint64_t smallest; /* budget that works for these maxima */
    struct {
        uint64_t process;   /* program and libraries (declared) */
        uint64_t threads;   /* stacks (declared) */
        uint64_t io;        /* rings, I/O threads (declared) */
        uint64_t draft;     /* the session of a draft model */
        uint64_t tokenizer; /* piece table, and the tokenizer if it is kept */
        uint64_t index;     /* tensors, tiles, schedules; of a session that traces, its events */
        uint64_t vectors;   /* norms and bias tables */
        uint64_t kv_self, kv_cross;
        uint64_t activations; /* of decoding: always there */
        uint64_t encode;      /* of an encoder pass: overlays the last pins; lies behind them if encode_only */
        uint64_t window;
        uint64_t pins;    /* includes `encode` */
        uint64_t reserve; /* the kernel's share: budget / 512 + 1 MiB */
    } part;
    uint64_t tokenizer_peak; /* resident while prompts are encoded, before all else */
    uint32_t slot_count;     /* of the window */
    uint64_t slot_bytes;
    bool     encode_only;    /* the pass that repeats, and whose tiles may stay, is the encoder's, not the decoder's */
    uint64_t pass_tiles, pinned_tiles; /* of that pass */
    uint64_t packed_tiles;             /* of the pinned: those that stay packed, as they are stored */
    uint64_t pinned_bytes;
    bool     embedding_resident; /* the table is pinned too */
    struct {
        uint64_t open;       /* headers, configuration */
        uint64_t tokenizer;  /* if text is encoded or decoded */
        uint64_t vectors;    /* once a session */
        uint64_t encode;     /* encoder blocks, once a prompt; 0 if encode_only */
        uint64_t cross;      /* cross-attention K and V, once a prompt; 0 if encode_only */
        uint64_t first_pass; /* decode pass that fills pins, after a prompt was encoded into an empty session; if
                              * encode_only, the encoder pass that does */
        uint64_t next_pass;  /* any later such pass */
        /* Of a next pass, when its predecessor ends: read for nothing if that gave the end token, or if encode_only and
         * nw_encode_request.more was set, but no more came. */
        uint64_t ahead;
        uint64_t refill;     /* pins that an encoder pass drops and the first decode pass after it reads again */
        uint64_t kv;         /* of any decode pass: K and V of prompts that fill all lanes; 0: they are in memory */
        uint64_t kv_page;    /* of a decode pass, for each full page of an answer's K and V; 0: they are in memory */
        uint64_t kv_answers; /* of a decode pass in the mean, if the answers in all lanes come to the longest */
        uint64_t embedding_row; /* one row of the embedding, when it is not resident or cached */
    } read;
    double   disk_rate, memory_rate; /* bytes a second that the predictions assume */
    bool     kv_on_disk;   /* the encoder's K and V do not fit in memory, or neither do the answers': a scratch file */
    uint32_t kv_page_rows; /* positions of a page of an answer's K and V, times its sequences; 0: they are in memory */
    double   column_cost; /* of one more column in a pass, as a part of the pass */
    double   seconds_first_token, seconds_per_token; /* if encode_only: of the first text, of each later one */
    unsigned threads;
    uint64_t budget_all_resident; /* at which every tile of that pass stays: later ones read embedding rows at most */
} nw_plan;

/* Makes the plan that a session with these options would follow. Reads no weights; the
 * tokenizer's files, once, if nothing has yet.
 * Errors  NW_E_BUDGET with bytes_needed: the plan is filled all the same, so that a caller can show it; NW_E_ARG. */
NW_API NW_MUST_USE nw_code nw_plan_make(nw_model *model, const nw_session_options *options, nw_plan *ret,
                                        nw_error *err);

/* One block of the plan: what of it is resident between passes. Cross-attention's K and V weights are not counted: they
 * are read once a prompt. If encode_only, there are the encoder's blocks alone. */
typedef struct {
    char     name[32]; /* "encoder 0", "decoder 3", "head" */
    uint64_t bytes;    /* of its decode (or encode) weights */
    uint64_t pinned_bytes; /* of these, what stays: weights, not the memory that their form takes */
} nw_plan_block;
/* Blocks in schedule order, encoder first: at most `cap` are written, *ret_count is how many there are. Errors as
 * nw_plan_make. */
NW_API NW_MUST_USE nw_code nw_plan_blocks(nw_model *model, const nw_session_options *options, nw_plan_block *blocks,
                                          size_t cap, size_t *ret_count, nw_error *err);

/* ---- session ----------------------------------------------------------------------------------------------------- */

/* Opens a session: threads, reader, arena. Closes the model's tokenizer first unless keep_tokenizer is set.
 * Errors  NW_E_BUDGET with bytes_needed; NW_E_ARG; NW_E_MEMORY; NW_E_IO, also when a file of the model was changed,
 *         cut, replaced or removed since the model was opened. */
NW_API NW_MUST_USE nw_code nw_session_open(nw_model *model, const nw_session_options *options, nw_session **ret_session,
                                           nw_error *err);
NW_API nw_session *nw_session_close(nw_session *session); /* takes NULL; returns NULL */

typedef enum { NW_FINISH_NONE, NW_FINISH_EOS, NW_FINISH_LENGTH, NW_FINISH_STOP } nw_finish;

/* A token that could have been chosen. */
typedef struct {
    uint32_t id;
    double   logprob; /* natural log of its probability by the raw logits */
} nw_candidate;
#define NW_CANDIDATES_MAX 100

/* One new token of a sequence of a request. Beams have none: which tokens stay shows at the end. */
typedef struct {
    uint64_t     request;  /* as nw_session_submit gave it */
    size_t       sequence; /* 0, 1, ...: which of its samples, or choices */
    size_t       index;    /* 0: the first new token */
    uint32_t     id;      /* 0 where processors leave none (scores are all -infinity): generate()'s greedy search takes
                           * that one too, its sampling raises an error */
    double       logprob; /* natural log of its probability by the raw logits; NaN unless asked for */
    const float *logits;  /* [vocab_size], raw; lives during the call */
    const float *scores;  /* [vocab_size], what was chosen from: the logits, processed as the request asks */
    const nw_candidate *top; /* [top_count], most probable first; lives during the call */
    size_t              top_count;
    /* What can be shown of the answer since the last token: whole characters, and nothing of a stop string or of what
     * may become one. Empty without a tokenizer. */
    const char *text;
    size_t      text_len;
    nw_finish   finish; /* NONE: more will come */
} nw_token;

/* One finished sequence. */
typedef struct {
    uint64_t        request;
    size_t          sequence; /* of beams 0 is the best; otherwise as nw_token */
    const uint32_t *ids;      /* [count], end token included; lives during the call */
    const double   *logprobs; /* [count], by the raw logits; NULL unless asked for */
    size_t          count;    /* 0: processors left nothing for so many beams */
    double          score; /* of a beam: its log-probabilities' sum / count^length_penalty; otherwise NaN */
    nw_finish       finish;
    bool            last; /* the request is done */
} nw_sequence;

typedef struct {
    const uint32_t *input_ids; /* copied; end token included by the caller */
    size_t          input_count;
    /* What the answer must begin with (copied); NULL: nothing. Reported like chosen tokens; stop strings are looked for
     * behind it. Not with beams, nor with choices. */
    const uint32_t *forced_ids;
    size_t          forced_count;
    /* Instead of answers of its own: whole answers to judge, one sequence each, in one pass for each of their positions
     * or fewer. Lengths [choice_count], and their ids one behind the other (copied). NULL: none. */
    const uint32_t *choice_ids;
    const size_t   *choice_lens;
    size_t          choice_count;
    size_t          max_new_tokens; /* 0: what the settings say, or else the session's max_output_tokens */
    bool            logprobs;
    size_t          top_count; /* candidates to report with each token, at most NW_CANDIDATES_MAX */
    /* How tokens are chosen; checked, end tokens filled in (nw_model_generation). Borrowed until the request is done.
     * NULL: greedy search. */
    const nw_generation_settings *settings;
    uint64_t                      seed; /* of samples: with the sequence and the position it makes the draw */
    bool                          lookup_off; /* guess nothing from the input and the answer: never changes a bit */
    /* Called for each token, on the stepping thread; returning false ends its sequence (finish STOP). May be NULL. */
    bool (*on_token)(void *user, const nw_token *token);
    /* Called once for each sequence that is finished, by on_token too; not after a cancel. May be NULL. */
    void (*on_sequence)(void *user, const nw_sequence *sequence);
    void *user;
} nw_request;

/* Takes a request in; it starts with the next step that has a lane free, unless more requests wait than there is room
 * for, and it is faster for all of them to encode several at once when more answers are done.
 * Errors  NW_E_ARG (ids out of range, empty input, longer than the session's maxima; the session encodes only);
 *         NW_E_MEMORY: too many wait; NW_E_TOKENIZER: stop strings, and answers are ids only. */
NW_API NW_MUST_USE nw_code nw_session_submit(nw_session *session, const nw_request *request, uint64_t *ret_id,
                                             nw_error *err);

/* One pass for every live request, after encoding what has just got a lane; each then gets one token.
 * ret_live  requests that are not finished, waiting ones included; 0: nothing to do.
 * Errors    NW_E_IO, NW_E_FORMAT (also: what comes out is not a number), NW_E_CANCELLED: all requests are dropped; the
 *           session can be used again. */
NW_API NW_MUST_USE nw_code nw_session_step(nw_session *session, size_t *ret_live, nw_error *err);

/* Drops a request; unknown ids are ignored. */
NW_API void nw_session_cancel(nw_session *session, uint64_t id);

/* From a signal handler or another thread: the pass under way, or the next if there is none, ends with NW_E_CANCELLED
 * within a tile. */
NW_API void nw_session_stop(nw_session *session);

typedef struct {
    uint32_t *ids;   /* room for max_new_tokens; may be NULL */
    double   *logprobs; /* the same; may be NULL */
    size_t    count; /* written: new tokens, end token included */
    nw_finish finish;
} nw_result;

/* Submits one request and steps until it is done; other requests of the session advance too. The result is that of
 * sequence 0; on_sequence has the others. */
NW_API NW_MUST_USE nw_code nw_session_generate(nw_session *session, const nw_request *request, nw_result *result,
                                               nw_error *err);

/* One input to encode, perhaps padded. What a caller of the reference implementation does is
 *   its own length, no padding          {ids, count}
 *   padded, attention_mask given        {ids, count, .pad_to = n}
 *   padded, attention_mask not given    {ids, count, .pad_to = n, .attend_pads = true}    Flux, Stable Diffusion 3
 *   masked, then cut and zero-padded    {ids, count, .pad_to = n, .zero_pads = true}      Wan
 */
typedef struct {
    const uint32_t *ids;         /* end token included by the caller */
    size_t          count;       /* at least 1 */
    size_t          pad_to;      /* pad_id is put behind the sequence up to so many tokens, at least count; 0: none */
    bool            attend_pads; /* pads are tokens like any other; else they are masked: nothing attends to them */
    bool            zero_pads;   /* states of pads are zero; masked ones are then not even computed */
    bool            more;        /* another encode will follow: its first tiles are read ahead, in vain if none does */
} nw_encode_request;

/* Encoder states of one input, after the final norm: states [pad_to, d_model] f32, or [count, d_model] without padding.
 * Masked pads change no bit of the states of the tokens. The session's max_input_tokens bounds what is computed: count,
 * or pad_to, unless the pads are masked and zero.
 * Errors  as nw_session_step; NW_E_ARG: ids out of range, none or too many, pad_to less than count. */
NW_API NW_MUST_USE nw_code nw_session_encode(nw_session *session, const nw_encode_request *request, float *states,
                                             nw_error *err);

/* Rows of states that are made for a request: pads count unless they are masked and zero. */
NW_API size_t nw_encode_rows(const nw_encode_request *request);

/* Several inputs in one pass over the encoder, each with the bits that it has alone, and without a copy: *ret_states
 * [rows, d_model] are where they were made, until the session's next pass; nw_encode_rows of each request, one behind
 * the other, in all at most max_encode_tokens. Pads that are attended and zero have the rows that were computed. `more`
 * is the last one's.
 * Errors  as nw_session_encode; NW_E_ARG: more than 256 inputs or max_encode_tokens. */
NW_API NW_MUST_USE nw_code nw_session_encode_many(nw_session *session, const nw_encode_request *requests, size_t n,
                                                  const float **ret_states, nw_error *err);

typedef struct {
    uint64_t    budget_bytes;
    uint64_t    peak_rss_bytes;  /* VmHWM now */
    uint64_t    accounted_bytes; /* peak of what this library itself took */
    uint64_t    bytes_read;      /* from model files, by the model and this session */
    uint64_t    weight_bytes_used; /* weights that passes have multiplied */
    uint64_t    kv_bytes_read, kv_bytes_written; /* of the scratch file; the former are among bytes_read */
    uint64_t    embedding_rows_read;
    uint64_t    pinned_bytes; /* resident now */
    uint64_t    window_bytes;
    uint64_t    passes, tokens, prompts; /* passes of the decoder */
    uint64_t    encode_passes;
    uint64_t    drafted, accepted; /* tokens that were guessed, and of these those that were right */
    double      seconds_load;        /* opening the model and the session */
    double      seconds_encode;      /* of the last prompts: encoder and cross-attention K and V */
    double      seconds_first_token; /* of the last prompt: from the start of its encoding to its first token */
    double      seconds_decode;      /* all decode passes but each prompt's first */
    uint64_t    decode_passes;       /* of these */
    double      seconds_waited;      /* for tiles that were not there yet */
    double      disk_rate;           /* bytes a second, as the session measured it to choose its pins; 0: it did not */
    uint64_t    probe_bytes;         /* read for that alone */
    const char *io;      /* "uring", "threads" */
    const char *kernels; /* "avx512" */
    unsigned    threads;
    /* Where the pass under way is, for a progress line. */
    const char *pass;    /* "encode", "cross", "decode", "idle" */
    uint32_t    block, block_count;
} nw_stats;
NW_API void nw_session_stats(const nw_session *session, nw_stats *ret);

/* The plan that the session follows: what nw_plan_make says, but for what the process turned out to have resident, and
 * that some pins of a pack may stay packed once the session has encoded a prompt and knows its disk. Its predictions
 * (seconds_*) stay as they were. */
NW_API void nw_session_plan(const nw_session *session, nw_plan *ret);

/* Where the time of a session's passes went, from its opening on, in seconds; a caller looks at differences. Nothing of
 * a session without nw_session_options.trace. Times of all workers are added up: divided by their number, they are
 * parts of the passes' own time. */
typedef struct {
    bool   on;
    double read;   /* with at least one read in flight, from its submission until the session saw that it had come */
    double waited; /* the session's thread, for weights that were not there yet: nothing is computed then */
    double team;   /* the session's thread, in jobs that the workers share, until the last of them was done */
    double restore, product, attention, norm; /* of all workers: strips to rows, rows times columns, ... */
    size_t events_kept, events_lost;
} nw_times;
NW_API void nw_session_times(const nw_session *session, nw_times *ret);

/* READ: a tile or an embedding row. RESTORE, PRODUCT: of one strip. WAIT: as nw_times.waited. */
typedef enum {
    NW_EVENT_READ,
    NW_EVENT_RESTORE,
    NW_EVENT_PRODUCT,
    NW_EVENT_ATTENTION,
    NW_EVENT_NORM,
    NW_EVENT_WAIT,
    NW_EVENT_COUNT
} nw_event_kind;
typedef struct {
    nw_event_kind kind;
    uint32_t      thread; /* the worker, 0: the session's own thread; of a READ, a number that no two at once have */
    uint64_t      begin_ns, end_ns; /* of the monotonic clock */
    const char   *tensor;           /* ATTENTION, NORM: the one multiplied before; NULL: none. Belongs to the model */
    char          block[32];        /* "encoder 0", "decoder 3", "head", ...; "" without a tensor */
    uint32_t      tile;
} nw_event;
NW_API bool nw_session_event(const nw_session *session, size_t index, nw_event *ret); /* false: no more are kept */

/* Called at most every 50 ms of a pass, on the stepping thread, while the session works. fn NULL: never. */
NW_API void nw_session_on_progress(nw_session *session, void (*fn)(void *user, const nw_stats *stats), void *user);

/* Reads every tile that one decode pass (or encoder pass, in a session that only encodes) would read, in the same order
 * by the same reader, without computing: the disk's own rate, to measure beside real passes. ret_bytes: what reads were
 * started for, those ahead for the next pass included. */
NW_API NW_MUST_USE nw_code nw_session_read_pass(nw_session *session, uint64_t *ret_bytes, double *ret_seconds,
                                                nw_error *err);

/* Reads all of `bytes` of memory by the session's workers: the memory's own rate. Returns bytes a second. */
NW_API double nw_session_memory_rate(nw_session *session);

#ifdef __cplusplus
}
#endif
#endif
