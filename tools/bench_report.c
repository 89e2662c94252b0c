#include "bench_report.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "print.h"

/* What follows from the samples. */
typedef struct {
    spread     seconds, read_only, memory_rate, fraction, bytes, kv_bytes;
    time_parts parts;
    bool       as_planned;    /* every pass read exactly what the plan says */
    bool       reads;         /* passes read something: weights, or K and V */
    double     disk_rate;     /* bytes a second; 0: unknown */
    double     memory_bytes;  /* that a pass reads from memory: weights, K and V */
    double     memory;        /* seconds that they take at the memory's rate; 0: unknown */
    bool       disk_is_limit; /* reading alone takes longer than memory alone */
    double     reached;       /* share of the limit's rate; 0: unknown */
    double     first_limit;   /* seconds of the first token at the rates measured; 0: unknown */
    double     flops;         /* of an encoder pass */
} summary;

static double seconds_of(const pass_sample *s)
{
    return s->seconds;
}
static double read_only_of(const pass_sample *s)
{
    return s->read_only;
}
static double memory_rate_of(const pass_sample *s)
{
    return s->memory_rate;
}
static double fraction_of(const pass_sample *s)
{
    return s->read_only / s->seconds;
}
static double kv_bytes_of(const pass_sample *s)
{
    return (double)s->kv_bytes;
}

static double bytes_of(const pass_sample *s)
{
    return (double)s->bytes;
}

static double inner_of(const nw_model_info *info)
{
    return (double)info->heads * info->d_kv;
}

/* Weights in the form they are resident in or stream by, K and V of half an answer and of the prompt. The embedding's
 * pins, of which a pass takes a row, are those bytes of the first pass that are not the decoder's. */
static double memory_bytes(const bench_report *r)
{
    const nw_plan       *p = &r->plan;
    const nw_model_info *info = &r->info;
    double               pinned = (double)p->pinned_bytes, first = (double)p->read.first_pass;
    if (p->embedding_resident && first > (double)info->decode_bytes)
        pinned *= (double)info->decode_bytes / first;
    double positions = p->encode_only ? 0 : (double)r->input_tokens + (double)r->output_tokens / 2;
    return pinned + (double)p->read.next_pass + positions * 2 * inner_of(info) * info->decoder_blocks * sizeof(float);
}

static double encode_flops(const bench_report *r)
{
    const nw_model_info *i = &r->info;
    double               t = (double)r->input_tokens, inner = inner_of(i);
    double               matrices = strncmp(i->activation, "gated", 5) == 0 ? 3 : 2;
    double               weights = 4 * inner * i->d_model + matrices * i->d_model * i->d_ff;
    return i->encoder_blocks * (2 * t * weights + 4 * t * t * inner);
}

/* The larger of what reading the encoder takes and what computing it does, then the decoder's bytes. What computing it
 * takes is what the first token's passes did, less one later pass. */
static double first_limit(const bench_report *r, const summary *s)
{
    const nw_plan *p = &r->plan;
    if (s->disk_rate <= 0)
        return 0;
    double read = (double)(p->read.encode + p->read.cross) / s->disk_rate;
    double work = measure_work(&r->first.parts);
    double decoder = (double)p->read.first_pass / s->disk_rate;
    if (p->encode_only)
        return work > decoder ? work : decoder;
    work -= measure_work(&s->parts);
    return (read > work ? read : work) + decoder;
}

static summary summarize(const bench_report *r)
{
    summary s = {.seconds = measure_spread(r->samples, r->count, seconds_of),
                 .read_only = measure_spread(r->samples, r->count, read_only_of),
                 .memory_rate = measure_spread(r->samples, r->count, memory_rate_of),
                 .fraction = measure_spread(r->samples, r->count, fraction_of),
                 .bytes = measure_spread(r->samples, r->count, bytes_of),
                 .kv_bytes = measure_spread(r->samples, r->count, kv_bytes_of),
                 .parts = measure_mean(r->samples, r->count),
                 .as_planned = true,
                 .disk_rate = r->probed_rate,
                 .memory_bytes = memory_bytes(r),
                 .flops = encode_flops(r)};
    for (size_t i = 0; i < r->count; i++)
        s.as_planned &= r->samples[i].bytes == r->plan.read.next_pass;
    s.reads = s.bytes.median + s.kv_bytes.median > 0;
    if (s.bytes.median > 0 && s.read_only.median > 0) /* K and V alone are too little for a rate */
        s.disk_rate = (s.bytes.median + s.kv_bytes.median) / s.read_only.median;
    if (s.memory_rate.median > 0)
        s.memory = s.memory_bytes / s.memory_rate.median;
    s.disk_is_limit = s.reads && s.read_only.median > s.memory;
    if (s.disk_is_limit)
        s.reached = s.fraction.median;
    else if (s.seconds.median > 0)
        s.reached = s.memory / s.seconds.median;
    s.first_limit = first_limit(r, &s);
    return s;
}

/* ---- for people
 * ------------------------------------------------------------------------------------------------------- */

/* Each later pass, its share of the whole, and the first one. */
static void print_part(const char *name, double later, double whole, double first, const char *remark)
{
    print_text("  %-18s%11.3f ms %5.1f %% %11.3f ms  %s\n", name, 1e3 * later, whole > 0 ? 100 * later / whole : 0,
               1e3 * first, remark);
}

static void print_parts(const time_parts *later, const time_parts *first)
{
    double whole = measure_whole(later);
    print_text("%-20s%14s %7s %14s\n", "of it", "each later", "", "the first");
    print_part("decoding weights", later->restore, whole, first->restore, "");
    print_part("multiplying", later->product, whole, first->product, "");
    print_part("attention", later->attention, whole, first->attention, "");
    print_part("other work", later->other, whole, first->other, "norms, tokens, submitting and reaping");
    print_part("waiting", later->waited, whole, first->waited, "for weights from the disk");
    print_part("idle", later->idle, whole, first->idle, "threads that wait for the last of a job");
    print_part("(reading)", later->read, whole, first->read, "a read in flight, beside the rest");
}

static void print_limits(const bench_report *r, const summary *s)
{
    print_text("\nlimits\n");
    if (s->read_only.median > 0 && s->reads)
        print_text("  %-18s%11.3f ms at %.2f GB/s; %.1f %% of its rate reached\n", "reading alone",
                   1e3 * s->read_only.median, (s->bytes.median + s->kv_bytes.median) / s->read_only.median * 1e-9,
                   100 * s->fraction.median);
    if (s->memory > 0)
        print_text("  %-18s%11.3f ms at %.1f GB/s; %.1f %% of its rate reached\n", "memory alone", 1e3 * s->memory,
                   s->memory_rate.median * 1e-9, 100 * s->memory / s->seconds.median);
    if (s->first_limit > 0)
        print_text("  %-18s%11.3f ms; the time is %.2f of it\n", r->plan.encode_only ? "first text" : "first token",
                   1e3 * s->first_limit, r->first.seconds / s->first_limit);
}

static void print_pins(const bench_report *r)
{
    const nw_plan *p = &r->plan;
    print_text("%llu of %llu tiles resident", (unsigned long long)p->pinned_tiles, (unsigned long long)p->pass_tiles);
    if (p->packed_tiles > 0)
        print_text(", %llu of them packed", (unsigned long long)p->packed_tiles);
    if (r->stats.disk_rate > 0)
        print_text(": a disk of %.2f GB/s, as the session measured", r->stats.disk_rate * 1e-9);
    print_text("\n\n");
}

static void print_table(const bench_report *r, const summary *s)
{
    const nw_plan *p = &r->plan;
    char           budget[16], peak[16], bytes[16], planned[16];
    const char    *each = p->encode_only ? "each later text" : "each later token";
    print_text("%s: %zu tokens in, %zu %s; %u thread%s, %s, %s\n", r->model, r->input_tokens, r->output_tokens,
               p->encode_only ? "texts" : "out", r->stats.threads, r->stats.threads == 1 ? "" : "s", r->stats.kernels,
               r->stats.io);
    print_text("budget %s, peak %s\n", nw_bytes_format(p->budget, false, budget),
               nw_bytes_format(r->stats.peak_rss_bytes, true, peak));
    print_pins(r);
    print_text("%-20s%11.3f ms", p->encode_only ? "first text" : "first token", 1e3 * r->first.seconds);
    if (!p->encode_only)
        print_text("  of which encoding %.3f ms", 1e3 * r->seconds_encode);
    if (r->seconds_first_again > 0)
        print_text("; of later prompts %.3f ms", 1e3 * r->seconds_first_again);
    print_text("\n%-20s%11.3f ms  median of %zu; half of them %.3f to %.3f ms\n", each, 1e3 * s->seconds.median,
               r->count, 1e3 * s->seconds.low, 1e3 * s->seconds.high);
    print_parts(&s->parts, &r->first.parts);
    if (s->kv_bytes.median > 0)
        print_text("  %-18s%14s\n", "read of K and V", nw_bytes_format((uint64_t)s->kv_bytes.median, false, bytes));
    print_text("  %-18s%14s", "read",
               s->bytes.median > 0 ? nw_bytes_format((uint64_t)s->bytes.median, false, bytes) : "0");
    print_text(s->as_planned ? "  as planned\n" : "  planned %s\n",
               p->read.next_pass > 0 ? nw_bytes_format(p->read.next_pass, false, planned) : "0");
    if (p->encode_only)
        print_text("  %-18s%11.1f GFLOP/s\n", "rate", s->flops / s->seconds.median * 1e-9);
    print_limits(r, s);
}

/* ---- for programs
 * ----------------------------------------------------------------------------------------------------- */

static void add_parts(cJSON *json, const char *name, const time_parts *p)
{
    cJSON *parts = cJSON_AddObjectToObject(json, name);
    cJSON_AddNumberToObject(parts, "decoding", p->restore);
    cJSON_AddNumberToObject(parts, "multiplying", p->product);
    cJSON_AddNumberToObject(parts, "attention", p->attention);
    cJSON_AddNumberToObject(parts, "other", p->other);
    cJSON_AddNumberToObject(parts, "waiting", p->waited);
    cJSON_AddNumberToObject(parts, "idle", p->idle);
    cJSON_AddNumberToObject(parts, "reading", p->read);
}

static void add_run(cJSON *json, const bench_report *r)
{
    cJSON_AddStringToObject(json, "model", r->model);
    cJSON_AddBoolToObject(json, "is_pack", r->info.is_pack);
    cJSON_AddBoolToObject(json, "encode_only", r->plan.encode_only);
    cJSON_AddNumberToObject(json, "budget", (double)r->plan.budget);
    cJSON_AddNumberToObject(json, "peak", (double)r->stats.peak_rss_bytes);
    cJSON_AddNumberToObject(json, "input_tokens", (double)r->input_tokens);
    cJSON_AddNumberToObject(json, "output_tokens", (double)r->output_tokens);
    cJSON_AddNumberToObject(json, "repeat", (double)r->repeat);
    cJSON_AddNumberToObject(json, "threads", r->stats.threads);
    cJSON_AddStringToObject(json, "io", r->stats.io);
    cJSON_AddStringToObject(json, "kernels", r->stats.kernels);
    cJSON_AddNumberToObject(json, "window", (double)r->stats.window_bytes);
    cJSON_AddNumberToObject(json, "pinned", (double)r->stats.pinned_bytes);
    cJSON_AddNumberToObject(json, "tiles", (double)r->plan.pass_tiles);
    cJSON_AddNumberToObject(json, "pinned_tiles", (double)r->plan.pinned_tiles);
    cJSON_AddNumberToObject(json, "packed_tiles", (double)r->plan.packed_tiles);
    cJSON_AddNumberToObject(json, "measured_disk_rate", r->stats.disk_rate);
}

static void print_json_report(const bench_report *r, const summary *s)
{
    cJSON *json = cJSON_CreateObject();
    add_run(json, r);
    cJSON_AddNumberToObject(json, "passes", (double)r->count);
    cJSON_AddNumberToObject(json, "bytes_per_pass", s->bytes.median);
    cJSON_AddNumberToObject(json, "kv_bytes_per_pass", s->kv_bytes.median);
    cJSON_AddNumberToObject(json, "planned_bytes_per_pass", (double)r->plan.read.next_pass);
    cJSON_AddBoolToObject(json, "as_planned", s->as_planned);
    cJSON_AddNumberToObject(json, "bytes_read", (double)r->stats.bytes_read);
    cJSON_AddNumberToObject(json, "seconds_load", r->stats.seconds_load);
    cJSON_AddNumberToObject(json, "seconds_encode", r->seconds_encode);
    cJSON_AddNumberToObject(json, "seconds_first", r->first.seconds);
    cJSON_AddNumberToObject(json, "seconds_first_again", r->seconds_first_again);
    cJSON_AddNumberToObject(json, "seconds_first_limit", s->first_limit);
    cJSON_AddNumberToObject(json, "seconds_pass", s->seconds.median);
    cJSON_AddNumberToObject(json, "seconds_pass_low", s->seconds.low);
    cJSON_AddNumberToObject(json, "seconds_pass_high", s->seconds.high);
    add_parts(json, "parts", &s->parts);
    add_parts(json, "first_parts", &r->first.parts);
    cJSON_AddNumberToObject(json, "seconds_read_only", s->read_only.median);
    cJSON_AddNumberToObject(json, "read_fraction", s->fraction.median);
    cJSON_AddNumberToObject(json, "disk_rate", s->disk_rate);
    cJSON_AddNumberToObject(json, "memory_rate", s->memory_rate.median);
    cJSON_AddNumberToObject(json, "memory_bytes", s->memory_bytes);
    cJSON_AddNumberToObject(json, "seconds_memory", s->memory);
    cJSON_AddStringToObject(json, "limit", s->disk_is_limit ? "disk" : "memory");
    cJSON_AddNumberToObject(json, "reached", s->reached);
    cJSON_AddNumberToObject(json, "encode_flops", s->flops);
    if (print_json(json, true))
        print_bytes("\n", 1);
    cJSON_Delete(json);
}

void bench_report_print(const bench_report *r, bool json)
{
    summary s = summarize(r);
    if (json)
        print_json_report(r, &s);
    else
        print_table(r, &s);
}
