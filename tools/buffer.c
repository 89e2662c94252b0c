/* Doubles its room up to the limit, so that appending is cheap and a buffer near its limit is not refused for the
 * doubling. */
#include "buffer.h"

#include <stdlib.h>
#include <string.h>

bool buffer_reserve(buffer *b, size_t more, size_t limit)
{
    if (b->used > limit || more > limit - b->used)
        return false;
    size_t need = b->used + more;
    if (need <= b->cap && b->data != NULL)
        return true;
    size_t cap = b->cap > limit / 2 ? limit : b->cap * 2;
    if (cap < need)
        cap = need;
    if (cap < 64)
        cap = 64;
    void *data = realloc(b->data, cap);
    if (data == NULL)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

bool buffer_append(buffer *b, const void *bytes, size_t count, size_t limit)
{
    if (!buffer_reserve(b, count, limit))
        return false;
    if (count > 0)
        memcpy((unsigned char *)b->data + b->used, bytes, count);
    b->used += count;
    return true;
}

void buffer_free(buffer *b)
{
    free(b->data);
    *b = (buffer){0};
}
