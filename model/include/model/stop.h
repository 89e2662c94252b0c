/* Stop strings: finds the first one in text that comes in pieces, and holds back what could become one.
 *
 * Bytes go through one automaton for each string (Knuth, Morris, Pratt 1977). What is shown is the text before the stop
 * string that is complete first; of several that end with the same byte, the longest. The string itself, and
 * what follows, is never shown. Pieces may be cut anywhere; if pieces and strings are whole UTF-8 characters, so is
 * each text that is shown.
 */
#ifndef NW_MODEL_STOP_H
#define NW_MODEL_STOP_H

#include "base/generation.h"

/* Copyable; some 10 KiB. */
typedef struct {
    nw_stop_strings strings;
    uint16_t        fail[NW_STOP_STRINGS_MAX][NW_STOP_BYTES_MAX]; /* longest border of each prefix */
    uint16_t        matched[NW_STOP_STRINGS_MAX];                 /* bytes of each string that the text ends with */
    uint16_t        held;    /* bytes not shown yet: the most of `matched`, so the beginning of that string */
    uint16_t        held_by; /* the string that has them */
    bool            stopped;
    uint16_t        which; /* the string that was found */
} nw_stop;

/* strings  copied; none of them empty; may be none. */
void nw_stop_init(nw_stop *m, const nw_stop_strings *strings);

/* Adds text.
 *
 * shown    room for len + NW_STOP_BYTES_MAX bytes; not text.
 * Returns  whether a stop string is complete, now or before. What may be shown is then all there will be. */
bool nw_stop_feed(nw_stop *m, const char *text, size_t len, char *shown, size_t *ret_shown_len);

/* The text has ended: what was held back, at most NW_STOP_BYTES_MAX bytes; 0 after a stop string. Returns its bytes. */
size_t nw_stop_end(nw_stop *m, char *shown);

#endif
