/* make_tokenizer: writes a sentencepiece model of so many made-up pieces (tests/support/make_spiece.h); with `madlad`
 * one in the manner of MADLAD-400, with a piece for each language and byte fallback.
 *
 *   make_tokenizer PIECES FILE [madlad]
 */
#include "make_spiece.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    bool          madlad = argc == 4 && strcmp(argv[3], "madlad") == 0;
    unsigned long pieces = argc == (madlad ? 4 : 3) ? strtoul(argv[1], NULL, 10) : 0;
    if (pieces < (madlad ? MAKE_SPIECE_MADLAD_MIN : MAKE_SPIECE_PIECES_MIN) || pieces > 4000000) {
        fputs("usage: make_tokenizer PIECES FILE [madlad]\n", stderr);
        return 2;
    }
    size_t (*write)(void *, size_t, uint32_t) = madlad ? make_spiece_madlad : make_spiece;
    size_t len = write(NULL, 0, (uint32_t)pieces);
    void  *bytes = malloc(len);
    FILE  *file = fopen(argv[2], "wb");
    bool   good = bytes != NULL && file != NULL;
    if (good)
        good = write(bytes, len, (uint32_t)pieces) == len && fwrite(bytes, 1, len, file) == len;
    if (file != NULL)
        good = fclose(file) == 0 && good;
    if (!good)
        fprintf(stderr, "make_tokenizer: '%s': %s\n", argv[2], strerror(errno));
    free(bytes);
    return good ? 0 : 1;
}
