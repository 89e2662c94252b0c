/* Settings of a generation, from the files of a model. */
#ifndef NW_BASE_GENERATION_PARSE_H
#define NW_BASE_GENERATION_PARSE_H

#include "base/generation.h"
#include "base/memory.h"

/* Reads generation_config.json, or the same keys at the top of config.json. What a key names is set and `given`; null
 * turns it off, as generate() takes it. Unknown keys are ignored.
 *
 * name    what messages call the file.
 * ret     written on success only.
 * Errors  NW_E_FORMAT: no JSON, a value of a wrong type; names the key. NW_E_UNSUPPORTED: more ids or strings than the
 *         limits above. Ranges are nw_generation_check's. */
NW_MUST_USE nw_code nw_generation_parse(nw_memory *mem, const char *name, const char *json, size_t bytes,
                                        nw_generation_settings *ret, nw_error *err);

/* The same for one task of config.json's task_specific_params, "prefix" included.
 * Errors  as above; NW_E_ARG: there is no such task; the message lists those that there are. */
NW_MUST_USE nw_code nw_generation_parse_task(nw_memory *mem, const char *name, const char *json, size_t bytes,
                                             const char *task, nw_generation_settings *ret, nw_error *err);

#endif
