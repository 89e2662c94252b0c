/* A growing run of bytes with a limit: the only place where the tools allocate.
 *
 * What the tools hold is resident memory of the process like any other, so every buffer has a limit that its user
 * derives from the budget, and growing past it is a result, not a surprise.
 */
#ifndef NW_TOOLS_BUFFER_H
#define NW_TOOLS_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    void  *data;      /* aligned for any type */
    size_t used, cap; /* bytes */
} buffer;

/* Makes room for `more` bytes behind `used`. False if that would take more than `limit` bytes in all, or the system
 * refuses. */
bool buffer_reserve(buffer *b, size_t more, size_t limit);

/* Appends; false as buffer_reserve. */
bool buffer_append(buffer *b, const void *bytes, size_t count, size_t limit);

void buffer_free(buffer *b);

#endif
