#!/bin/sh
# The benchmark suite: how fast narrows is, and how far from what the disk, the memory and the processor allow, in one run: a table on
# standard output, and every figure as CSV.
#
#   benchmarks/suite.sh [-p PARTS] [-m MODELS] [-f FORMS] [-b BUDGETS] [-i INPUT] [-n OUTPUT] [-r REPEAT] [-t THREADS]
#                       [-d DIR] [-o CSV] [-B BUILD] [--against CMD]
#
#   -p PARTS     budgets    each form under each budget, beside its limits             (default: all but neighbours, in this order)
#                neighbours each budget and the next larger one in turn: how many times as long a token takes, pair by pair
#                encode     the encoder alone, all resident, at 32, 128 and 512 tokens, beside one big matrix product
#                input      how the cost grows with the prompt, at half of what would be all resident
#                output     and with the answer
#                threads    and with 1 thread, 2, ... up to THREADS: all resident, and encoding 512 tokens
#   -m MODELS    shapes that narrows-generate knows, or directories of models          (default flan-t5-base flan-t5-large flan-t5-xl;
#                flan-t5-xxl and ul2 need 23 and 39 GB, and their packs two thirds of that)
#   -f FORMS     plain, packed, slim                                                   (default plain packed)
#   -b BUDGETS   sizes, small to all                                                   (default: from the smallest that works to all
#                resident, each twice the one before)
#   -i, -n       tokens of the prompt and of the answer (default 32 32; of a model above 12 GB 4 out); at least 3 out
#   -r REPEAT    runs of each row, in turn; the one with the median time is kept       (default 1; of neighbours pairs, all kept in CSV)
#   -t THREADS   (default: as many as this process may use)
#   -d DIR       where models are made, and kept for the next run (default: a temporary directory, removed at the end)
#   --against    a peer's command, run by sh in the same memory cgroup as ours where one can be made, its model's files not in the
#                page cache, in turn with ours: MODEL, BUDGET (bytes), IDS, INPUT and OUTPUT are in its environment. Prints how
#                often longer it takes. With the part `budgets` alone.
#
# Two minutes:  benchmarks/suite.sh -p budgets -m flan-t5-base -n 8
#
# Each row is a process of its own (narrows bench). Passes that only read alternate with real ones, so the machine's noise hits both
# alike; still, compare only rows of one run, and for a difference of a few hundredths only the ratios of `neighbours`.
set -eu
export LC_ALL=C

usage() {
    sed -n '5,6s/^#   //p' "$0" >&2
    exit 2
}
say() { echo "suite.sh: $*" >&2; }

here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build
parts='budgets encode input output threads' models='flan-t5-base flan-t5-large flan-t5-xl' forms='plain packed' budgets='' input=32
output='' repeat=1 threads='' dir='' csv='' against=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    -p) parts=$2 ;;
    -m) models=$2 ;;
    -f) forms=$2 ;;
    -b) budgets=$2 ;;
    -i) input=$2 ;;
    -n) output=$2 ;;
    -r) repeat=$2 ;;
    -t) threads=$2 ;;
    -d) dir=$2 ;;
    -o) csv=$2 ;;
    -B) build=$2 ;;
    --against) against=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $input$output$repeat$threads in
*[!0-9]*) usage ;;
esac
for part in $parts; do
    case $part in
    budgets | neighbours | encode | input | output | threads) ;;
    *) usage ;;
    esac
done
for form in $forms; do
    case $form in
    plain | packed | slim) ;;
    *) usage ;;
    esac
done
[ -z "$output" ] || [ "$output" -ge 3 ] || usage
narrows=$build/narrows generate=$build/benchmarks/narrows-generate product=$build/benchmarks/bench_product launcher=$build/tests/launcher
for program in "$narrows" "$generate" "$product" ${against:+"$launcher"}; do
    [ -x "$program" ] || { say "$program is not built"; exit 1; }
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-suite.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
dir=${dir:-$work}
mkdir -p "$dir"

# ---- models --------------------------------------------------------------------------------------------------------------------------

# Free space of DIR in bytes.
room() { df -Pk "$dir" | awk 'NR == 2 { printf "%.0f\n", $4 * 1024 }'; }

# Sets $model to a directory with the model in the form, making it if need be; false (said) if there is no room.
find_model() { # MODEL FORM
    if [ -d "$1" ]; then
        plain=$1 made=$dir/$(basename "$1")
    else
        plain=$dir/$1 made=$dir/$1
        if [ ! -d "$plain" ]; then
            bytes=$("$generate" "$1" "$plain" --dry-run | sed -n 's/.*, \([0-9]*\) bytes.*/\1/p')
            [ -n "$bytes" ] || { say "$1 is neither a directory nor a shape"; exit 1; }
            if [ "$bytes" -gt "$(room)" ]; then
                say "$1: no room for its $bytes bytes in $dir"
                return 1
            fi
            say "making $plain"
            "$generate" "$1" "$plain" >"$work/made" 2>&1 || { cat "$work/made" >&2; exit 1; }
        fi
    fi
    model=$plain
    [ "$2" != plain ] || return 0
    model=$made.$2
    [ ! -d "$model" ] || return 0
    say "making $model"
    if ! "$narrows" pack -q "$plain" "$model" --compress "$2" >"$work/made" 2>&1; then
        cat "$work/made" >&2
        return 1
    fi
}

# ---- one row -------------------------------------------------------------------------------------------------------------------------

value() { # NAME FILE: of JSON
    sed -n "s/.*\"$1\":[[:space:]]*\"\{0,1\}\([^\",]*\).*/\1/p" "$2" | head -n 1
}

# Out of the page cache, as far as one may without being root: file by file.
forget() { for file in "$model"/*; do dd of="$file" oflag=nocache conv=notrunc,fdatasync count=0 status=none 2>/dev/null || true; done; }

columns='part,model,form,budget,peak,input_tokens,output_tokens,threads,io,kernels,passes,seconds_first,seconds_first_limit,seconds_pass,'\
'seconds_pass_low,seconds_pass_high,seconds_read_only,read_fraction,seconds_memory,limit,reached,bytes_per_pass,planned_bytes_per_pass,'\
'as_planned,disk_rate,memory_rate,decoding,multiplying,attention,other,waiting,idle,reading,gflop_s,product_gflop_s,smaller_budget,ratio'
fields='peak input_tokens output_tokens threads io kernels passes seconds_first seconds_first_limit seconds_pass seconds_pass_low seconds_pass_high seconds_read_only read_fraction seconds_memory '\
'limit reached bytes_per_pass planned_bytes_per_pass as_planned disk_rate memory_rate decoding multiplying attention other waiting idle '\
'reading'

# The rate of one big product by so many threads, GFLOP/s: the better of ours and OpenBLAS's.
product_rate() { # THREADS
    [ -f "$work/product.$1" ] ||
        "$product" "$1" | awk -F , 'NR > 1 && $6 > best { best = $6 } END { printf "%.1f\n", best }' >"$work/product.$1"
    cat "$work/product.$1"
}

heading() {
    printf '\n%s\n%-22s %-6s %8s %5s %5s %3s %10s %6s %10s %10s %7s %6s %10s %4s  %s\n' "$1" model form budget in out thr first first/ \
        token limit by reach read/token plan 'decode multiply attend other wait idle, reading %'
}

# Adds one run to $work/rows, in CSV; false (said) if it fails. $extra: more options of bench.
bench() { # PART NAME FORM BUDGET INPUT OUTPUT
    rate=''
    forget
    if ! "$narrows" bench -q --json -m "$model" -b "$4" --input-tokens "$5" -n "$6" ${threads:+-t "$threads"} $extra \
        >"$work/one" 2>"$work/why"; then
        say "$2 $3 -b $4: $(cat "$work/why")"
        return 1
    fi
    if [ "$(value encode_only "$work/one")" = true ]; then
        rate=$(awk -v f="$(value encode_flops "$work/one")" -v s="$(value seconds_pass "$work/one")" 'BEGIN { printf "%.1f", f / s / 1e9 }')
        [ -f "$work/product.$(value threads "$work/one")" ] || product_rate "$(value threads "$work/one")" >/dev/null
    fi
    printf '%s,%s,%s,%s' "$1" "$2" "$3" "$(value budget "$work/one")" >>"$work/rows"
    for field in $fields; do
        printf ',%s' "$(value "$field" "$work/one")" >>"$work/rows"
    done
    printf ',%s,%s,,\n' "$rate" "${rate:+$(product_rate "$(value threads "$work/one")")}" >>"$work/rows"
}

# Runs a row and adds it to CSV and table.
row() { # PART NAME FORM BUDGET INPUT OUTPUT
    : >"$work/rows"
    turn=0
    while [ $turn -lt "$repeat" ]; do
        turn=$((turn + 1))
        bench "$@" || return 0
    done
    sort -t , -k 14,14 -g "$work/rows" | sed -n "$(((repeat + 1) / 2))p" >"$work/kept"
    cat "$work/kept" >>"$work/csv"
    awk -F , '{
        whole = $27 + $28 + $29 + $30 + $31 + $32
        reached = $34 != "" ? $34 / $35 : $21
        limit = $34 != "" ? 1000 * $14 * $34 / $35 : 1000 * ($20 == "disk" ? $17 : $19)
        printf "%-22s %-6s %7.0fM %5d %5d %3d %8.0fms %6s %8.2fms %8.2fms %7s %5.1f%% %8.3fGB %4s  ", $2, $3, $4 / 1048576, $6, $7, $8,
            1000 * $12, ($13 > 0 ? sprintf("%.2f", $12 / $13) : "-"), 1000 * $14, limit, ($34 != "" ? "product" : $20),
            100 * reached, $22 / 1e9, ($24 == "true" ? "yes" : "no")
        printf "%.0f %.0f %.0f %.0f %.0f %.0f, %.0f\n", 100 * $27 / whole, 100 * $28 / whole, 100 * $29 / whole, 100 * $30 / whole,
            100 * $31 / whole, 100 * $32 / whole, 100 * $33 / whole
    }' "$work/kept"
}

# ---- budgets -------------------------------------------------------------------------------------------------------------------------

# A plan that is refused (status 3) is printed all the same, and names both ends.
plan() { # BUDGET OPTION...
    plan_budget=$1
    shift
    "$narrows" plan --json -q --force --lookup off -m "$model" -b "$plan_budget" "$@" >"$work/plan" 2>"$work/why" || [ -s "$work/plan" ] ||
        { cat "$work/why" >&2; exit 1; }
}
planned() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9]*\).*/\1/p" "$work/plan" | head -n 1; }

# The budget at which nothing is read again. A plan says where that is with its own window, which a larger budget may widen.
all_resident() { # OPTION...
    plan 1M "$@"
    all=$(planned budget_all_resident) tries=0
    plan "$all" "$@"
    while [ "$(planned next_pass)" -gt 0 ] && [ $tries -lt 64 ]; do
        all=$((all + all / 50)) tries=$((tries + 1))
        plan "$all" "$@"
    done
    echo "$all"
}

# Budgets of a model: those asked for, or the smallest and each twice the one before, up to all resident.
budgets_of() { # INPUT OUTPUT
    if [ -n "$budgets" ]; then
        echo "$budgets"
        return
    fi
    all=$(all_resident --max-input-tokens "$1" -n "$2")
    plan 1M --max-input-tokens "$1" -n "$2"
    awk -v least="$(planned smallest)" -v all="$all" 'BEGIN {
        printf "%.0f", least
        for (b = 67108864; b < all; b *= 2)
            if (b > 1.05 * least)
                printf " %.0f", b
        if (all > 1.05 * least)
            printf " %.0f\n", all
    }'
}

output_of() { # MODEL: large ones take minutes a token
    if [ -n "$output" ]; then
        echo "$output"
    elif [ "$(du -sk "$model" | cut -f 1)" -gt 12000000 ]; then
        echo 4
    else
        echo 32
    fi
}

# FORM by form of each model, budget by budget: COMMAND NAME FORM BUDGET INPUT OUTPUT, with the budget before in $smaller.
each_budget() { # FORMS COMMAND...
    wanted=$1
    shift
    for name in $models; do
        for form in $wanted; do
            find_model "$name" "$form" || continue
            out=$(output_of) smaller=''
            for b in $(budgets_of "$input" "$out"); do
                "$@" "$(basename "$name")" "$form" "$b" "$input" "$out"
                smaller=$b
            done
        done
    done
}

# ---- neighbours ----------------------------------------------------------------------------------------------------------------------

# The budget and the one before it in turn, so that both see the same disk. All runs go to CSV, each second one with its ratio to the
# first, and their medians to the table.
neighbours() { # NAME FORM BUDGET INPUT OUTPUT
    [ -n "$smaller" ] || return 0
    : >"$work/rows"
    turn=0
    while [ $turn -lt "$repeat" ]; do
        turn=$((turn + 1))
        bench neighbours "$1" "$2" "$smaller" "$4" "$5" || return 0
        bench neighbours "$@" || return 0
    done
    awk -F , -v OFS=, 'NR % 2 { smaller = $4; seconds = $14 } NR % 2 == 0 { $36 = smaller; $37 = $14 / seconds } { print }' \
        "$work/rows" >"$work/kept"
    cat "$work/kept" >>"$work/csv"
    awk -F , '
        function median(of, i, j, v) { # sorts of[1] to of[pairs]
            for (i = 2; i <= pairs; i++) {
                v = of[i]
                for (j = i - 1; j > 0 && of[j] > v; j--)
                    of[j + 1] = of[j]
                of[j + 1] = v
            }
            return (of[int((pairs + 1) / 2)] + of[int(pairs / 2) + 1]) / 2
        }
        NR % 2 { pairs++; budget = $4; seconds[pairs] = $14 + 0; bytes[pairs] = $22 + 0; disk[pairs] = $25 + 0 }
        NR % 2 == 0 {
            seconds_next[pairs] = $14 + 0; bytes_next[pairs] = $22 + 0; disk_next[pairs] = $25 + 0; ratio[pairs] = $37 + 0
            slower += $37 > 1.03
            each = each sprintf(" %.3f (%s)", $37, disk[pairs] > 0 ? sprintf("%.2f", $25 / disk[pairs]) : "-")
        }
        END {
            printf "%-22s %-6s %7.0fM %7.0fM %5d %5d %3d %8.2fms %8.2fms %8.3fGB %8.3fGB %6.2f %6.2f %6.3f %7s %s\n", $2, $3,
                budget / 1048576, $4 / 1048576, $6, $7, $8, 1000 * median(seconds), 1000 * median(seconds_next), median(bytes) / 1e9,
                median(bytes_next) / 1e9, median(disk) / 1e9, median(disk_next) / 1e9, median(ratio), slower "/" pairs, each
        }' "$work/kept"
}

# ---- a peer --------------------------------------------------------------------------------------------------------------------------

# Seconds of a command under a budget, by the launcher; without a cgroup where none can be made (77), said once.
timed() { # BUDGET COMMAND...
    budget=$1 status=0
    shift
    forget
    "$launcher" ${cgroups:+--cgroup "$budget"} --stdout /dev/null --json "$work/cost" -- "$@" 2>"$work/why" || status=$?
    if [ $status -eq 77 ] && [ -n "$cgroups" ]; then
        say "no memory cgroup can be made here: the peer is held to nothing ($(head -n 1 "$work/why"))"
        cgroups=''
        timed "$budget" "$@"
        return
    fi
    if [ $status -ne 0 ]; then
        say "status $status under $budget: $* ($(tail -n 1 "$work/why"))"
        echo nan
        return
    fi
    value seconds "$work/cost" | tr -d '}'
}

# Whole runs of both in turn, model and program loaded anew each time.
compare() { # NAME FORM BUDGET INPUT OUTPUT
    plan "$3" --max-input-tokens "$4" -n "$5"
    BUDGET=$(planned budget) MODEL=$model INPUT=$4 OUTPUT=$5
    IDS=$(awk -v n="$4" 'BEGIN { for (i = 1; i < n; i++) printf "%d ", 3 + i * 7; print 1 }')
    export BUDGET MODEL INPUT OUTPUT IDS
    turn=0
    : >"$work/pairs"
    while [ $turn -lt "$repeat" ]; do
        turn=$((turn + 1))
        ours=$(timed "$BUDGET" "$narrows" run -q --json -m "$model" -b "$BUDGET" -n "$5" ${threads:+-t "$threads"} --input-ids "$IDS")
        theirs=$(timed "$BUDGET" sh -c "$against")
        echo "$ours $theirs" >>"$work/pairs"
    done
    awk '{ print $2 / $1, $1, $2 }' "$work/pairs" | sort -g | sed -n "$(((repeat + 1) / 2))p" |
        awk -v name="$1 $2" -v budget="$BUDGET" -v cgroup="${cgroups:-without a cgroup}" '{
            printf "%-29s %7.0fM  ours %.2f s, the peer %.2f s: %.2f times as long (%s)\n", name, budget / 1048576, $2, $3, $1, cgroup }'
}

# ---- parts ---------------------------------------------------------------------------------------------------------------------------

part_budgets() {
    heading "under each budget: $input tokens in"
    each_budget "$forms" row budgets
    [ -n "$against" ] || return 0
    printf '\nagainst: %s\n' "$against"
    cgroups='in a memory cgroup'
    each_budget plain compare
}

part_neighbours() {
    printf '\n%s\n%-22s %-6s %8s %8s %5s %5s %3s %10s %10s %10s %10s %6s %6s %6s %7s  %s\n' \
        "each budget and the next larger one in turn: medians of $repeat pairs" model form budget next in out thr token next read/token next \
        'GB/s' next ratio '> 1.03' 'next to budget of each pair: time (rate of the disk)'
    each_budget "$forms" neighbours
    grep -q '^neighbours,' "$work/csv" || say 'neighbours: no two budgets were measured'
}

# Every other part wants the first form alone but `encode`.
part_encode() {
    heading 'encoding alone, all resident; "token" is a text, and its limit one big matrix product'
    for name in $models; do
        for form in $forms; do
            find_model "$name" "$form" || continue
            for in in 32 128 512; do
                extra=--embed
                row encode "$(basename "$name")" "$form" "$(all_resident --embed --max-input-tokens $in)" $in 6
                extra=''
            done
        done
    done
}

# Half of it, or a little more than the smallest that works.
half_resident() { # INPUT OUTPUT
    all=$(all_resident --max-input-tokens "$1" -n "$2")
    plan 1M --max-input-tokens "$1" -n "$2"
    awk -v all="$all" -v least="$(planned smallest)" 'BEGIN { printf "%.0f", (all / 2 > 1.05 * least ? all / 2 : 1.05 * least) }'
}

part_input() {
    heading 'growing prompt'
    for name in $models; do
        find_model "$name" "${forms%% *}" || continue
        for in in 8 32 128 512 2048; do
            row input "$(basename "$name")" "${forms%% *}" "$(half_resident 2048 8)" $in 8
        done
    done
}

part_output() {
    heading 'growing answer'
    for name in $models; do
        find_model "$name" "${forms%% *}" || continue
        for out in 8 32 128; do
            row output "$(basename "$name")" "${forms%% *}" "$(half_resident "$input" 128)" "$input" $out
        done
    done
}

part_threads() {
    heading 'growing number of threads; "first" of the second row of each is a text of 512 tokens'
    most=${threads:-$(nproc)}
    for name in $models; do
        find_model "$name" "${forms%% *}" || continue
        count=1
        while [ $count -le "$most" ]; do
            threads=$count
            row threads "$(basename "$name")" "${forms%% *}" "$(all_resident --max-input-tokens "$input" -n 16)" "$input" 16
            extra=--embed
            row threads "$(basename "$name")" "${forms%% *}" "$(all_resident --embed --max-input-tokens 512)" 512 4
            extra=''
            count=$((count + 1))
        done
        threads=$most
    done
}

commit=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git -C "$here" status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
{
    echo "# narrows benchmark suite; seconds and bytes; medians over the passes of a run, the median of $repeat runs, all of neighbours"
    echo "# commit: $commit"
    echo "# cpu: $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
    echo "# kernel: $(uname -sr)"
    echo "# file system: $(stat -f -c %T "$dir"), $(df -P "$dir" | awk 'NR == 2 { print $1 }')"
    echo "# date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "# cache state: O_DIRECT"
} | tee "$work/csv"
echo "$columns" >>"$work/csv"
extra=''
for part in $parts; do
    "part_$part"
    [ -z "$csv" ] || cp "$work/csv" "$csv"
done
