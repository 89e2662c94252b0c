/* A pytorch_model.bin of the older form, without its first two pickles, which are always the same and put before the
 * input here. */
#include "checkpoint_check.h"

#define HEAD "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02\x4d\xe9\x03\x2e"
#define HEAD_BYTES (sizeof HEAD - 1)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t whole[HEAD_BYTES + 65536];
    if (size > sizeof whole - HEAD_BYTES)
        return 0;
    memcpy(whole, HEAD, HEAD_BYTES);
    if (size > 0)
        memcpy(whole + HEAD_BYTES, data, size);
    check_weights(whole, HEAD_BYTES + size, NULL);
    return 0;
}

#ifdef NW_FUZZ
#include "pickle_mutator.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
    return size < 1 ? LLVMFuzzerMutate(data, size, max) : pickle_mutate(data, size, max, seed);
}
#endif
