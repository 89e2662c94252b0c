/* Stop strings by KMP automata. What is held back is a beginning of one of the strings, so it is not stored: the string
 * has it. After each byte the longest matched beginning is held; whatever was held before it and is not part of it any
 * more is shown. */
#include "model/stop.h"

#include "base/check.h"

#include <string.h>

/* fail[i]: length of the longest proper border of the first i + 1 bytes. */
static void make_borders(const char *text, size_t len, uint16_t *fail)
{
    uint16_t k = 0;
    fail[0] = 0;
    for (size_t i = 1; i < len; i++) {
        while (k > 0 && text[i] != text[k])
            k = fail[k - 1];
        if (text[i] == text[k])
            k++;
        fail[i] = k;
    }
}

void nw_stop_init(nw_stop *m, const nw_stop_strings *strings)
{
    *m = (nw_stop){.strings = *strings};
    for (size_t i = 0; i < strings->count; i++) {
        NW_CHECK(strings->lens[i] >= 1 && strings->lens[i] <= NW_STOP_BYTES_MAX);
        make_borders(strings->text[i], strings->lens[i], m->fail[i]);
    }
}

static void step(nw_stop *m, size_t i, char byte)
{
    const char *text = m->strings.text[i];
    uint16_t    k = m->matched[i];
    while (k > 0 && text[k] != byte)
        k = m->fail[i][k - 1];
    m->matched[i] = text[k] == byte ? (uint16_t)(k + 1) : 0;
}

/* Moves `count` of the bytes held, and then `byte` if there is room for one more, to what is shown. */
static size_t show(const nw_stop *m, char *shown, size_t count, char byte)
{
    size_t held = m->held;
    memcpy(shown, m->strings.text[m->held_by], count < held ? count : held);
    if (count > held)
        shown[held] = byte;
    return count;
}

/* One byte. Returns how many bytes became shown. */
static size_t feed_byte(nw_stop *m, char byte, char *shown)
{
    uint16_t most = 0, by = 0;
    for (size_t i = 0; i < m->strings.count; i++) {
        step(m, i, byte);
        if (m->matched[i] > most) {
            most = m->matched[i];
            by = (uint16_t)i;
        }
        /* The longest of those that are complete starts first. */
        bool complete = m->matched[i] == m->strings.lens[i];
        if (complete && (!m->stopped || m->strings.lens[i] > m->strings.lens[m->which])) {
            m->stopped = true;
            m->which = (uint16_t)i;
        }
    }
    size_t kept = m->stopped ? m->strings.lens[m->which] : most;
    size_t count = show(m, shown, (size_t)m->held + 1 - kept, byte);
    m->held = m->stopped ? 0 : most;
    m->held_by = by;
    return count;
}

bool nw_stop_feed(nw_stop *m, const char *text, size_t len, char *shown, size_t *ret_shown_len)
{
    size_t count = 0;
    for (size_t i = 0; i < len && !m->stopped; i++)
        count += feed_byte(m, text[i], shown + count);
    *ret_shown_len = count;
    return m->stopped;
}

size_t nw_stop_end(nw_stop *m, char *shown)
{
    size_t count = m->held;
    memcpy(shown, m->strings.text[m->held_by], count);
    m->held = 0;
    return count;
}
