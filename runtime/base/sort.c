#include "base/sort.h"

#include "base/check.h"

#include <string.h>

static void swap(unsigned char *a, unsigned char *b, size_t size)
{
    unsigned char held[256];
    memcpy(held, a, size);
    memcpy(a, b, size);
    memcpy(b, held, size);
}

void nw_sort(void *base, size_t count, size_t size, int (*compare)(const void *a, const void *b))
{
    NW_CHECK(size <= 256);
    unsigned char *p = base;
    bool           sorted = true;
    for (size_t i = 1; i < count && sorted; i++)
        sorted = compare(p + (i - 1) * size, p + i * size) <= 0;
    if (sorted) /* as most files are */
        return;
    /* Heapsort: first the heap is built from the middle down, then its top goes to the end, again and again. */
    size_t start = count / 2, end = count;
    while (end > 1) {
        if (start > 0)
            start--;
        else
            swap(p, p + --end * size, size);
        for (size_t at = start, child; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && compare(p + child * size, p + (child + 1) * size) < 0)
                child++;
            if (compare(p + at * size, p + child * size) >= 0)
                break;
            swap(p + at * size, p + child * size, size);
        }
    }
}
