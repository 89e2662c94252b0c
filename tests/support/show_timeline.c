/* show_timeline FILE: how many events of each kind a timeline has, as lines "KIND COUNT". Exits 1, saying why, if it is
 * no JSON array of complete events and names of tracks, or if what an event is about lacks a name. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS_MAX = 16 };

static struct {
    const char *kind;
    size_t      count;
} kinds[KINDS_MAX];

static void need(int ok, const char *why)
{
    if (ok)
        return;
    fprintf(stderr, "show_timeline: %s\n", why);
    exit(1);
}

static void count_kind(const char *kind)
{
    size_t i = 0;
    while (i < KINDS_MAX && kinds[i].kind != NULL && strcmp(kinds[i].kind, kind) != 0)
        i++;
    need(i < KINDS_MAX, "too many kinds");
    kinds[i].kind = kind;
    kinds[i].count++;
}

static double number(const cJSON *item, const char *name)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(item, name);
    need(cJSON_IsNumber(n) && n->valuedouble >= 0, name);
    return n->valuedouble;
}

static const char *text(const cJSON *item, const char *name)
{
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(item, name);
    need(cJSON_IsString(t) && t->valuestring[0] != '\0', name);
    return t->valuestring;
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    need(file != NULL && fseek(file, 0, SEEK_END) == 0, "usage: show_timeline FILE");
    size_t bytes = (size_t)ftell(file);
    char  *json = malloc(bytes + 1);
    rewind(file);
    need(json != NULL && fread(json, 1, bytes, file) == bytes, "it cannot be read");
    fclose(file);
    json[bytes] = '\0';
    cJSON *all = cJSON_ParseWithOpts(json, NULL, 1), *item;
    need(cJSON_IsArray(all), "no JSON array");
    cJSON_ArrayForEach(item, all)
    {
        const char *phase = text(item, "ph");
        text(item, "name");
        number(item, "pid");
        need(strcmp(phase, "X") == 0 || strcmp(phase, "M") == 0, "an event that is neither complete nor a name");
        if (phase[0] == 'M')
            continue;
        number(item, "tid");
        number(item, "ts");
        number(item, "dur");
        count_kind(text(item, "cat"));
    }
    for (size_t i = 0; i < KINDS_MAX && kinds[i].kind != NULL; i++)
        printf("%s %zu\n", kinds[i].kind, kinds[i].count);
    cJSON_Delete(all);
    free(json);
    return 0;
}
