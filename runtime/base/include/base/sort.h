/* Sorting without allocating: qsort may take memory that nobody counted. */
#ifndef NW_BASE_SORT_H
#define NW_BASE_SORT_H

#include <stddef.h>

/* Sorts in place: heapsort, and nothing at all where the order is right already. Not stable; elements of at most 256
 * bytes. `compare` as for qsort. */
void nw_sort(void *base, size_t count, size_t size, int (*compare)(const void *a, const void *b));

#endif
