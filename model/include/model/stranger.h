/* Models that are no plain T5, recognised so that they are refused by name and never run wrongly.
 *
 * By the model_type of a config.json, or, where there is none or it is wrong, by a part of a tensor's name that no T5
 * has.
 */
#ifndef NW_MODEL_STRANGER_H
#define NW_MODEL_STRANGER_H

typedef struct {
    const char *what; /* "a LongT5" */
    const char *why;  /* the rest of a sentence: what it does that is not computed, and what to do */
} nw_stranger;

/* NULL: the type is not known. model_type is not one of t5, mt5, umt5. */
const nw_stranger *nw_stranger_by_type(const char *model_type);

/* The marks of tensor names, from the most telling to the least: for which name holds which, ask them in order.
 * Returns the part of a name that mark `index` looks for, or NULL if there are no more. */
const char *nw_stranger_mark(unsigned index, const nw_stranger **ret);

#endif
