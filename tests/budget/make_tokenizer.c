/* make_tokenizer: writes a sentencepiece model of so many made-up pieces (tests/support/make_spiece.h).
 *
 *   make_tokenizer PIECES FILE
 */
#include "make_spiece.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    unsigned long pieces = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    if (pieces < MAKE_SPIECE_PIECES_MIN || pieces > 4000000) {
        fputs("usage: make_tokenizer PIECES FILE\n", stderr);
        return 2;
    }
    size_t len = make_spiece(NULL, 0, (uint32_t)pieces);
    void  *bytes = malloc(len);
    FILE  *file = fopen(argv[2], "wb");
    bool   good = bytes != NULL && file != NULL;
    if (good)
        good = make_spiece(bytes, len, (uint32_t)pieces) == len && fwrite(bytes, 1, len, file) == len;
    if (file != NULL)
        good = fclose(file) == 0 && good;
    if (!good)
        fprintf(stderr, "make_tokenizer: '%s': %s\n", argv[2], strerror(errno));
    free(bytes);
    return good ? 0 : 1;
}
