/* What `bench` has measured, and how it is told. */
#ifndef NW_TOOLS_BENCH_REPORT_H
#define NW_TOOLS_BENCH_REPORT_H

#include "pass_sample.h"

/* "Pass": a token's, or with plan.encode_only a text's. */
typedef struct {
    const char   *model; /* as the user called it */
    size_t        input_tokens, output_tokens, repeat;
    nw_model_info info;
    nw_plan       plan;
    nw_stats      stats;               /* at the end */
    double        probed_rate;         /* of the disk, bytes a second, where no later pass reads; 0: unknown */
    double        seconds_encode;      /* of the first token: encoder, and K and V of cross-attention */
    double        seconds_first_again; /* the first token of later prompts, their mean; 0: there were none */
    pass_sample   first;               /* the first token, encoding included; or the first text */
    size_t        count;
    pass_sample   samples[MEASURE_MAX]; /* [count] every later pass but each prompt's last */
} bench_report;

/* A table, or one JSON object. */
void bench_report_print(const bench_report *r, bool json);

#endif
