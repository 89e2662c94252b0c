# bench: what it reads is what the plan says, its parts add up, and its timeline is JSON with events of every kind.
. "$(dirname "$0")/cli_common.sh"
show=$1/tests/show_timeline

# number NAME FILE: the first number of that name
number() { sed -n "s/.*\"$1\":[[:space:]]*\(-\{0,1\}[0-9][0-9.e+-]*\).*/\1/p" "$2" | head -n 1; }
holds() { awk "BEGIN { exit !($1) }" || fail "$ran: not so: $1"; }

run bench -m "$model" -b 64M --input-tokens 5 -n 6
expect_status 0
out_has 'first token'
out_has 'each later token .* median of 4;'
for part in 'decoding weights' multiplying attention 'other work' waiting idle '(reading)'; do
    out_has "^  $part  *[0-9.-]* ms  *[0-9.-]* %  *[0-9.-]* ms"
done
out_has 'as planned$'

# Streamed, partly resident and all resident; and one read at a time. The last pass of a prompt and the first are not
# counted: 2 * (6 - 2).
for options in '--pins off' '--pins 300K' '' '--pins off --queue-depth 1 --prefetch off'; do
    run plan -m "$model" -b 64M --max-input-tokens 5 -n 6 --json $options
    cp "$work/out" "$work/plan"
    run bench -m "$model" -b 64M --input-tokens 5 -n 6 --repeat 2 --json $options
    expect_status 0
    planned=$(number next_pass "$work/plan")
    [ "$(number planned_bytes_per_pass "$work/out")" = "$planned" ] || fail "$ran: planned is not $planned"
    [ "$(number bytes_per_pass "$work/out")" = "$planned" ] || fail "$ran: read is not $planned"
    [ "$(number passes "$work/out")" = 8 ] || fail "$ran: not 8 passes"
    out_has '"as_planned":.*true'
    holds "$(number seconds_first "$work/out") > 0 && $(number seconds_pass "$work/out") > 0"
    holds "$(number multiplying "$work/out") > 0 && $(number memory_rate "$work/out") >= 0"
    case $options in
    *prefetch*) holds "$(number waiting "$work/out") > 0 && $(number reading "$work/out") > 0" ;;
    esac
done
# How much of the next pass is read ahead depends on the disk where few reads may be in flight.
run bench -m "$model" -b 64M --input-tokens 5 -n 6 --pins 300K --queue-depth 3 --json
expect_status 0
run bench -m "$model" -b 64M --input-tokens 5 -n 6 --pins off --json
holds "$(number disk_rate "$work/out") > 0 && $(number read_fraction "$work/out") > 0"
run bench -m "$model" -b 64M --input-tokens 40 -n 6 --kv disk --pins off --json
out_has '"as_planned":.*true'
holds "$(number kv_bytes_per_pass "$work/out") > 0"
run bench -m "$model" -b 64M --input-tokens 40 -n 6 --kv disk
out_has '^ *read  *0  as planned'
out_has 'reading alone .* GB/s'
run bench -m "$model" -b 64M --input-tokens 9 -n 5 --embed --json
expect_status 0
out_has '"encode_only":.*true'
out_has '"as_planned":.*true'
[ "$(number passes "$work/out")" = 3 ] || fail "$ran: not 3 texts"
run bench "$data/goldens/encoder-only" -b 64M
expect_status 0
out_has 'each later text'

run bench -m "$model" -b 64M -n 4 --pins off --prefetch off --trace "$work/timeline"
expect_status 0
"$show" "$work/timeline" >"$work/kinds" 2>&1 || fail "the timeline: $(cat "$work/kinds")"
for kind in read decode product attention norm wait; do
    grep -q "^$kind [1-9]" "$work/kinds" || fail "the timeline has no '$kind'"
done
grep -q '"product decoder 0".*"tile":0' "$work/timeline" || fail 'a product lacks its block'
run bench -m "$model" -b 64M -n 4 --trace "$work/timeline" --trace-events 3
expect_status 0
err_has 'timeline ends early: 3 events'
[ "$("$show" "$work/timeline" | awk '{ n += $2 } END { print n }')" = 3 ] || fail "$ran: not 3 events"

refused 2 'no model' bench -b 64M
refused 2 'at least 3' bench -m "$model" -b 64M -n 2
refused 2 'at most 4096' bench -m "$model" -b 64M -n 64 --repeat 65
refused 2 'input-tokens' bench -m "$model" -b 64M --input-tokens 0
refused 2 'queue-depth' bench -m "$model" -b 64M --queue-depth 0
refused 2 'queue-depth' run -m "$model" -b 64M --queue-depth 1025 x
refused 2 'needs --trace' bench -m "$model" -b 64M --trace-events 9
refused 2 'more than one model' bench -m "$model" -b 64M x
refused 3 'too small' bench -m "$model" -b 1M
refused 3 'too small' bench -m "$model" -b 64M --trace "$work/t" --trace-events 67108864
refused 5 'nowhere' bench -m "$model" -b 64M --trace "$work/nowhere/t"
refused 2 '/no/such' bench -m /no/such -b 64M
if [ -c /dev/full ]; then
    refused 5 'No space' bench -m "$model" -b 64M --trace /dev/full
fi
finish
