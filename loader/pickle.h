/* Python's pickle as data: builds plain values, runs nothing. Private to loader/.
 *
 * A stack machine over the few opcodes that torch.save writes (protocol 2). Anything else is refused by its name, and
 * so is every global that the caller does not know: nothing is ever imported or called. The pickle is streamed, never
 * held; what stays are its values, in bounded pools.
 */
#ifndef NW_LOADER_PICKLE_H
#define NW_LOADER_PICKLE_H

#include "source.h"
#include "tensor_table.h"

#define NW_PICKLE_BYTES_MAX ((uint64_t)64 << 20)
#define NW_PICKLE_STACK_MAX ((size_t)4096)     /* Python stores items of a dict in batches of 1000 keys and values */
#define NW_PICKLE_MARKS_MAX ((size_t)256)      /* nesting */
#define NW_PICKLE_MEMO_MAX ((size_t)1000000)   /* entries */
#define NW_PICKLE_ITEMS_MAX ((size_t)1000000)  /* of all tuples */
#define NW_PICKLE_NODES_MAX ((size_t)262144)   /* of all dicts and lists */
#define NW_PICKLE_TEXT_MAX ((size_t)65536)     /* bytes of one string */
#define NW_PICKLE_TEXTS_MAX ((size_t)16 << 20) /* bytes of all strings that are kept */

typedef enum {
    NW_PICKLE_UNSET, /* no value yet */
    NW_PICKLE_NONE,
    NW_PICKLE_BOOL,
    NW_PICKLE_INT,
    NW_PICKLE_FLOAT, /* its value is not kept */
    NW_PICKLE_TEXT,
    NW_PICKLE_LONG_TEXT, /* too long for any name: not kept */
    NW_PICKLE_TUPLE,
    NW_PICKLE_LIST,
    NW_PICKLE_DICT,
    NW_PICKLE_GLOBAL, /* and below: the caller's, by number */
    NW_PICKLE_STORAGE,
    NW_PICKLE_TENSOR,
} nw_pickle_kind;

typedef struct {
    nw_pickle_kind kind;
    uint32_t       index; /* TUPLE: of its first item; LIST, DICT: of the container; GLOBAL and below: the caller's */
    union {
        int64_t     number; /* INT, BOOL; TUPLE: how many items */
        const char *text;   /* TEXT: UTF-8, NUL-terminated, without NUL inside; belongs to the pickle */
    };
} nw_pickle_value;

typedef struct nw_pickle nw_pickle;

/* What the caller makes of globals, calls (REDUCE) and persistent ids. Each writes a value, or refuses. */
typedef struct {
    nw_code (*global)(void *user, const char *module, const char *name, nw_pickle_value *ret, nw_error *err);
    nw_code (*call)(void *user, nw_pickle *pickle, nw_pickle_value callee, nw_pickle_value arguments,
                    nw_pickle_value *ret, nw_error *err);
    nw_code (*persistent)(void *user, nw_pickle *pickle, nw_pickle_value id, nw_pickle_value *ret, nw_error *err);
} nw_pickle_calls;

/* source, calls and user are borrowed and must outlive the pickle.
 * Memory  tag NW_TAG_INDEX; at first about 150 KiB.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pickle_open(const nw_source *source, const nw_pickle_calls *calls, void *user,
                                   nw_pickle **ret_pickle, nw_error *err);
nw_pickle          *nw_pickle_close(nw_pickle *pickle); /* takes NULL; returns NULL */

/* Runs one pickle, which starts at `offset` and ends at or before `end`, within the file. Values of earlier runs stay
 * good.
 * ret_end  where it ended; may be NULL.
 * Errors   NW_E_FORMAT: broken, cut short, beyond a limit; NW_E_UNSUPPORTED: an opcode that is not known here, by name;
 *          those of the calls and of nw_io_run; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pickle_run(nw_pickle *pickle, uint64_t offset, uint64_t end, nw_pickle_value *ret_root,
                                  uint64_t *ret_end, nw_error *err);

/* Item `at` of a tuple (at < number). */
nw_pickle_value nw_pickle_item(const nw_pickle *pickle, nw_pickle_value tuple, size_t at);

/* A fresh dict; `ordered`: an OrderedDict, which alone may be given attributes.
 * Errors  NW_E_FORMAT: too many; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pickle_dict(nw_pickle *pickle, bool ordered, nw_pickle_value *ret, nw_error *err);

/* Walks over a list (its items are keys) or a dict, in the order of insertion. Start with *at = 0; false: no more. */
bool nw_pickle_next(const nw_pickle *pickle, nw_pickle_value container, uint32_t *at, nw_pickle_value *ret_key,
                    nw_pickle_value *ret_value);

/* True if it is a text and equals the string. */
bool nw_pickle_is(nw_pickle_value value, const char *text);

/* NW_E_FORMAT: what is wrong, where the machine stands. */
nw_code nw_pickle_broken(const nw_pickle *pickle, const char *problem, nw_error *err);

#endif
