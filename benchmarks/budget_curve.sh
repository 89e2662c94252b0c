#!/bin/sh
# The budget curve of one model as CSV: a geometric list of budgets from the smallest that works up to where all is resident, each
# measured by budget_curve (benchmarks/budget_curve.c; medians over the passes of a run), with what the numbers depend on in front.
#
#   benchmarks/budget_curve.sh MODEL CSV [-c COUNT] [-s SMALLEST] [-l LARGEST] [-r REPEATS] [-B BUILD] [-- BUDGET_CURVE_OPTION ...]
#
#   -c COUNT      budgets (default 8)            -s, -l SIZE  the ends of the list (default: what `narrows plan` names)
#   -r REPEATS    runs of each budget; the row with the median time per token is kept (default 1)
#   -B BUILD      the build directory (default build, beside this directory)
#
# Compare only rows of one file: another hour is another machine.
set -eu

usage() {
    sed -n 's/^#   \(benchmarks.*\)/usage: \1/p' "$0" >&2
    exit 2
}

here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build count=8 smallest='' largest='' repeats=1
[ $# -ge 2 ] || usage
model=$1 csv=$2
shift 2
while getopts c:s:l:r:B: option; do
    case $option in
    c) count=$OPTARG ;;
    s) smallest=$OPTARG ;;
    l) largest=$OPTARG ;;
    r) repeats=$OPTARG ;;
    B) build=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
case $count$repeats in
*[!0-9]*) usage ;;
esac
[ "$count" -ge 1 ] && [ "$repeats" -ge 1 ] || usage
for program in "$build/narrows" "$build/benchmarks/budget_curve"; do
    [ -x "$program" ] || { echo "budget_curve.sh: $program is not built" >&2; exit 1; }
done

# The value of an option of budget_curve, for the plan to be made alike.
value_of() { # NAME FALLBACK OPTION...
    name=$1 value=$2
    shift 2
    while [ $# -ge 2 ]; do
        [ "$1" != "$name" ] || value=$2
        shift
    done
    echo "$value"
}
input=$(value_of --input 32 "$@")
output=$(value_of --output 32 "$@")
io=$(value_of --io auto "$@")

work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-curve.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM

# A plan that is refused (status 3) is printed all the same, and names both ends.
plan() { # BUDGET
    "$build/narrows" plan --json -q --force -m "$model" -b "$1" --max-input-tokens "$input" -n "$output" --io "$io" \
        >"$work/plan" 2>"$work/why" || [ -s "$work/plan" ] || { cat "$work/why" >&2; exit 1; }
}
planned() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9]*\).*/\1/p" "$work/plan" | head -n 1; }
bytes() { # SIZE: as narrows reads it
    "$build/narrows" plan --json -q --force -m "$model" -b "$1" >"$work/size" 2>/dev/null || true
    sed -n 's/.*"budget":[[:space:]]*\([0-9]*\).*/\1/p' "$work/size" | head -n 1
}
plan 1M
[ -n "$smallest" ] && smallest=$(bytes "$smallest") || smallest=$(planned smallest)
if [ -n "$largest" ]; then
    largest=$(bytes "$largest")
else
    # A plan says where all is resident with its own window, which a larger budget may widen: until that holds.
    largest=$(planned budget_all_resident) tries=0
    plan "$largest"
    while [ "$(planned next_pass)" -gt 0 ] && [ $tries -lt 64 ]; do
        largest=$((largest + largest / 50))
        tries=$((tries + 1))
        plan "$largest"
    done
fi
awk -v a="$smallest" -v b="$largest" -v n="$count" 'BEGIN {
    for (i = 0; i < n; i++) {
        x = n > 1 ? a * exp(log(b / a) * i / (n - 1)) : a
        printf "%.0f\n", int((x + 4095) / 4096) * 4096
    }
}' >"$work/budgets"

commit=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git -C "$here" status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
{
    echo "# narrows budget curve; medians over the decode passes of a run, the median of $repeats runs"
    echo "# commit: $commit"
    echo "# cpu: $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
    echo "# kernel: $(uname -sr)"
    echo "# file system: $(stat -f -c %T "$model"), $(df -P "$model" | awk 'NR == 2 { print $1 }')"
    echo "# date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "# cache state: O_DIRECT"
} >"$work/csv"

# Budgets in turn, and all of them again for each repeat: a slow minute then hits every budget, not one.
repeat=0
while [ $repeat -lt "$repeats" ]; do
    while read -r budget; do
        "$build/benchmarks/budget_curve" "$model" "$budget" "$@" >"$work/one" </dev/null
        head -n 1 "$work/one" >"$work/head"
        sed -n 2p "$work/one" >>"$work/rows"
        echo "budget_curve.sh: $(sed -n 2p "$work/one")" >&2
    done <"$work/budgets"
    repeat=$((repeat + 1))
done
cat "$work/head" >>"$work/csv"
# seconds_per_token is column 12.
while read -r budget; do
    awk -F , -v b="$budget" '$2 == b' "$work/rows" | sort -t , -k 12,12 -n | sed -n "$(((repeats + 1) / 2))p"
done <"$work/budgets" >>"$work/csv"
cp "$work/csv" "$csv"
