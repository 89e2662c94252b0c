#!/bin/sh
# How fast a model is packed, beside a plain copy of the same bytes by the same reader and writer (`narrows unpack` of a
# checkpoint): alternating, the order changing from pair to pair, medians as CSV.
#
#   benchmarks/pack_rate.sh MODEL [-r PAIRS] [-d DIR] [-B BUILD] [-- PACK_OPTION ...]
#
#   -r PAIRS   (default 7)      -d DIR   where to write; on the disk of MODEL, or the two are not alike (default: beside it)
#   -B BUILD   the build directory (default build, beside this directory)
set -eu

usage() {
    sed -n 's/^#   \(benchmarks.*\)/usage: \1/p' "$0" >&2
    exit 2
}

here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build pairs=7
[ $# -ge 1 ] || usage
model=$1 dir=$(dirname "$1")
shift
while getopts r:d:B: option; do
    case $option in
    r) pairs=$OPTARG ;;
    d) dir=$OPTARG ;;
    B) build=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
case $pairs in
'' | *[!0-9]* | 0) usage ;;
esac
[ -x "$build/narrows" ] || { echo "pack_rate.sh: $build/narrows is not built" >&2; exit 1; }
work=$(mktemp -d "$dir/narrows-rate.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM

# once COMMAND ARGS...: appends seconds to $work/COMMAND
once() {
    command=$1
    shift
    "$build/narrows" "$command" -q --json "$model" "$work/dst" "$@" >"$work/json"
    sed -n 's/.*"seconds":[[:space:]]*\([0-9.e-]*\).*/\1/p' "$work/json" >>"$work/$command"
    rm -rf "$work/dst"
}
number() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9]*\).*/\1/p" "$work/json"; }

once unpack # not counted: a first run may find the disk asleep
bytes=$(number written_bytes)
rm "$work/unpack"
i=0
while [ $i -lt "$pairs" ]; do
    [ $((i % 2)) -eq 0 ] || once pack "$@"
    once unpack
    [ $((i % 2)) -eq 1 ] || once pack "$@"
    echo "pack_rate.sh: copy $(tail -n 1 "$work/unpack") s, pack $(tail -n 1 "$work/pack") s" >&2
    i=$((i + 1))
done
paste -d ' ' "$work/unpack" "$work/pack" | awk '{ print $1 / $2 }' >"$work/ratios"
# of sorted values: the middle one, the first, the last
spread() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[1], v[NR] }'; }
echo 'bytes,copy_mb_s,copy_min,copy_max,pack_mb_s,pack_min,pack_max,pack_of_copy,ratio_min,ratio_max'
{ spread "$work/unpack"; spread "$work/pack"; spread "$work/ratios"; } | tr '\n' ' ' | awk -v b="$bytes" '{
    m = b / 1e6
    printf "%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.3f,%.3f,%.3f\n", b, m / $1, m / $3, m / $2, m / $4, m / $6, m / $5, $7, $8, $9
}'
