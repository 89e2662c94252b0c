/* make_hostile: the changes to a model's files that a shell cannot make.
 *
 *   make_hostile header FILE             prints the JSON header of a safetensors file
 *   make_hostile join JSON FILE [ZEROS]  prints a safetensors file with that header, the data of FILE, and ZEROS bytes
 *   make_hostile length N                prints N as the 8 bytes that a safetensors file begins with
 *   make_hostile flip FILE SEED BYTES    changes one of the first BYTES bytes of FILE, drawn from SEED; the same again
 *                                        restores it. Prints the position and the two values
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned char *bytes;
    size_t         len;
} content;

static bool content_read(const char *path, content *ret)
{
    FILE *file = fopen(path, "rb");
    long  len = -1;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        len = ftell(file);
    if (len >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        ret->len = (size_t)len;
        ret->bytes = malloc(ret->len + 1);
        if (ret->bytes == NULL || fread(ret->bytes, 1, ret->len, file) != ret->len)
            len = -1;
    }
    if (file != NULL)
        fclose(file);
    if (len < 0)
        fprintf(stderr, "make_hostile: cannot read '%s'\n", path);
    return len >= 0;
}

static uint64_t header_bytes(const content *c)
{
    uint64_t bytes = 0;
    for (size_t i = 8; c->len >= 8 && i-- > 0;)
        bytes = bytes << 8 | c->bytes[i];
    return c->len >= 8 && bytes <= c->len - 8 ? bytes : 0;
}

static void print_length(uint64_t bytes)
{
    for (int i = 0; i < 8; i++)
        putchar((int)(bytes >> (8 * i) & 0xff));
}

static bool join(const char *json_path, const char *path, uint64_t zeros)
{
    content json = {0}, file = {0};
    if (!content_read(json_path, &json) || !content_read(path, &file))
        return false;
    uint64_t header = header_bytes(&file);
    print_length(json.len);
    fwrite(json.bytes, 1, json.len, stdout);
    fwrite(file.bytes + 8 + header, 1, file.len - 8 - (size_t)header, stdout);
    for (uint64_t i = 0; i < zeros; i++)
        putchar(0);
    free(json.bytes);
    free(file.bytes);
    return true;
}

/* splitmix64: neighbouring seeds give unrelated numbers. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool flip(const char *path, uint64_t seed, uint64_t bytes)
{
    content c = {0};
    if (!content_read(path, &c))
        return false;
    size_t        range = bytes < c.len ? (size_t)bytes : c.len;
    bool          good = range > 0;
    size_t        at = good ? (size_t)(draw(&seed) % range) : 0;
    unsigned char mask = (unsigned char)(draw(&seed) % 255 + 1);
    FILE         *file = good ? fopen(path, "r+b") : NULL;
    good = file != NULL && fseek(file, (long)at, SEEK_SET) == 0 && fputc(c.bytes[at] ^ mask, file) != EOF;
    if (file != NULL)
        good = fclose(file) == 0 && good;
    if (good)
        printf("byte %zu: 0x%02x to 0x%02x\n", at, c.bytes[at], c.bytes[at] ^ mask);
    free(c.bytes);
    return good;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    bool        good = false;
    if (strcmp(what, "header") == 0 && argc == 3) {
        content c = {0};
        good = content_read(argv[2], &c);
        if (good)
            fwrite(c.bytes + 8, 1, (size_t)header_bytes(&c), stdout);
        free(c.bytes);
    } else if (strcmp(what, "join") == 0 && (argc == 4 || argc == 5)) {
        good = join(argv[2], argv[3], argc == 5 ? strtoull(argv[4], NULL, 10) : 0);
    } else if (strcmp(what, "length") == 0 && argc == 3) {
        print_length(strtoull(argv[2], NULL, 0));
        good = true;
    } else if (strcmp(what, "flip") == 0 && argc == 5) {
        good = flip(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    } else {
        fputs("usage: make_hostile header FILE | join JSON FILE [ZEROS] | length N | flip FILE SEED BYTES\n", stderr);
    }
    return good && fflush(stdout) == 0 ? 0 : 1;
}
