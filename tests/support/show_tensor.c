/* show_tensor FILE                 each tensor of a .safetensors file: NAME DTYPE DIM...
 * show_tensor FILE NAME            one f32 tensor [rows, columns]: for each row the index of its largest value, and the
 *                                  log of that one's softmax, to 9 digits
 * show_tensor FILE NAME values     all its elements, one row a line
 *
 * Reads with the project's own reader, which refuses a file that is not to the letter. */
#include "loader/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(bool ok, const nw_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "show_tensor: %s\n", err->msg);
    exit(1);
}

static void show_list(const nw_checkpoint *c)
{
    for (size_t i = 0; i < nw_checkpoint_tensor_count(c); i++) {
        const nw_tensor *t = nw_checkpoint_tensor(c, i);
        printf("%s %s", t->name, t->dtype_name);
        for (uint32_t d = 0; d < t->dim_count; d++)
            printf(" %llu", (unsigned long long)t->dims[d]);
        printf("\n");
    }
}

static void show_row(const float *row, size_t columns)
{
    size_t best = 0;
    double sum = 0;
    for (size_t i = 1; i < columns; i++)
        best = row[i] > row[best] ? i : best;
    for (size_t i = 0; i < columns; i++)
        sum += exp((double)row[i] - (double)row[best]);
    printf("%zu %.9f\n", best, -log(sum));
}

static void show_values(const nw_tensor *t, const void *row, size_t columns)
{
    for (size_t i = 0; i < columns; i++) {
        if (strcmp(t->dtype_name, "I32") == 0)
            printf("%s%d", i > 0 ? " " : "", ((const int32_t *)row)[i]);
        else
            printf("%s%.9g", i > 0 ? " " : "", (double)((const float *)row)[i]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    nw_memory      mem;
    nw_io         *io = NULL;
    nw_checkpoint *c = NULL;
    nw_error       err = {.msg = "usage: show_tensor FILE [NAME [values]]"};
    need(argc >= 2 && argc <= 4, &err);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    need(nw_io_open(&mem, &(nw_io_options){.depth = 1}, &io, &err) == NW_OK, &err);
    need(nw_checkpoint_open(&mem, io, argv[1], NULL, NULL, &c, &err) == NW_OK, &err);
    if (argc == 2) {
        show_list(c);
    } else {
        const nw_tensor *t = nw_checkpoint_find(c, argv[2]);
        snprintf(err.msg, sizeof err.msg, "no tensor %s of 4-byte elements", argv[2]);
        need(t != NULL && (strcmp(t->dtype_name, "F32") == 0 || strcmp(t->dtype_name, "I32") == 0), &err);
        float *data = malloc((size_t)t->bytes + 1);
        need(nw_file_read(&mem, io, nw_checkpoint_file(c, t->file), argv[1], t->offset, data, (size_t)t->bytes, NULL,
                          &err) == NW_OK,
             &err);
        size_t columns = (size_t)t->dims[t->dim_count - 1];
        size_t rows = columns > 0 ? (size_t)t->bytes / 4 / columns : 0;
        for (size_t r = 0; r < rows; r++) {
            if (argc == 4)
                show_values(t, data + r * columns, columns);
            else
                show_row(data + r * columns, columns);
        }
        free(data);
    }
    nw_checkpoint_close(c);
    nw_io_close(io);
    return 0;
}
