#!/bin/sh
# How fast answers come when passes over the weights are shared: lanes, beams, lines of mixed length, guesses. Runs to be compared
# alternate; medians, and their ratio, on standard output.
#
#   benchmarks/generation.sh [-p PARTS] [-m MODEL] [-b BUDGET] [-i INPUT] [-n OUTPUT] [-s SIZE] [-l BUDGETS] [-r REPEAT] [-d DIR] [-B BUILD]
#
#   -p PARTS   lanes     16 equal lanes, and 4 beams, beside one lane of MODEL             (default: all three)
#              lines     a thousand lines of mixed length over 16 lanes, beside 1,008 equal ones, 16 at a time, of the mean
#                        length in and out, of numbers-t5 grown to SIZE (0: as it is)
#              guesses   guesses that are never right beside none: sampled answers to a prompt with every word in it, of
#                        numbers-t5 grown to SIZE, with a quarter of it as the budget, and all resident
#   -m MODEL   of `lanes`: a shape that narrows-generate knows, or a directory             (default flan-t5-xl)
#   -b, -i, -n of `lanes`: budget and tokens                                               (default 512M 32 32)
#   -s SIZE    (default 400M)
#   -l BUDGETS of `lines`                                                                  (default: 0.45 of SIZE)
#   -r REPEAT  runs of each (default 3)
#   -d DIR     where models are made, and kept for the next run (default: a temporary directory, removed at the end)
#   -B BUILD   the build directory (default build, beside this directory)
set -eu
export LC_ALL=C

usage() {
    sed -n '5s/^#   /usage: /p' "$0" >&2
    exit 2
}

here=$(cd "$(dirname "$0")/.." && pwd)
build=$here/build parts='lanes lines guesses' model=flan-t5-xl budget=512M input=32 output=32 size=400M budgets='' repeat=3 dir=''
while getopts p:m:b:i:n:s:l:r:d:B: option; do
    case $option in
    p) parts=$OPTARG ;;
    m) model=$OPTARG ;;
    b) budget=$OPTARG ;;
    i) input=$OPTARG ;;
    n) output=$OPTARG ;;
    s) size=$OPTARG ;;
    l) budgets=$OPTARG ;;
    r) repeat=$OPTARG ;;
    d) dir=$OPTARG ;;
    B) build=$OPTARG ;;
    *) usage ;;
    esac
done
[ $# -eq $((OPTIND - 1)) ] || usage
case $input$output$repeat in
*[!0-9]* | '') usage ;;
esac
for part in $parts; do
    case $part in
    lanes | lines | guesses) ;;
    *) usage ;;
    esac
done
numbers=$here/tests/data/numbers-t5
narrows=$build/narrows launcher=$build/tests/launcher
for program in "$narrows" "$launcher" "$build/benchmarks/narrows-generate" "$build/benchmarks/narrows-grow"; do
    [ -x "$program" ] || { echo "generation.sh: $program is not built" >&2; exit 1; }
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-generation.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
dir=${dir:-$work}
mkdir -p "$dir"
: >"$work/in"

# made NAME COMMAND...: makes a model in DIR, if it is not there; the command ends in where to
made() {
    path=$dir/$1
    shift
    [ -d "$path" ] || "$@" "$path" >"$work/made" 2>&1 || { cat "$work/made" >&2; exit 1; }
}

# value NAME: of the last line of JSON
value() { tail -n 1 "$work/out" | sed "s/.*\"$1\":\([0-9.e-]*\).*/\1/"; }

# run NAME OPTION...: adds a line to NAME's runs: seconds in all, seconds of a pass that gives no first token, tokens, passes,
# encoder passes, guesses, and those that were right
run() {
    name=$1
    shift
    "$launcher" --stdout "$work/out" --json "$work/cost" -- "$narrows" run -q --json "$@" <"$work/in" 2>"$work/why" ||
        { cat "$work/why" >&2; exit 1; }
    seconds=$(sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' "$work/cost")
    echo "$seconds $(value seconds_per_token) $(value tokens) $(value passes) $(value encode_passes) $(value drafted) $(value accepted)" \
        >>"$work/runs.$name"
}

# median COLUMN NAME: of NAME's runs; COLUMN is an expression of awk
median() { awk "{ print $1 }" "$work/runs.$2" | sort -g | sed -n "$(((repeat + 1) / 2))p"; }

# compare TITLE NAME EXPRESSION NAME2 EXPRESSION2
compare() {
    awk -v title="$1" -v a="$(median "$3" "$2")" -v b="$(median "$5" "$4")" -v names="$2 $4" 'BEGIN {
        split(names, name)
        printf "%-58s %s %.4g, %s %.4g: %.3f\n", title, name[1], a, name[2], b, a / b }'
}

# repeated COMMAND: runs it REPEAT times
repeated() {
    turn=0
    while [ $turn -lt "$repeat" ]; do
        turn=$((turn + 1))
        "$1"
    done
}

# ---- lanes ---------------------------------------------------------------------------------------------------------------------------

lanes_turn() {
    for count in 1 16; do
        yes "$ids" | head -n $count >"$work/in"
        run lanes-$count -m "$lanes_model" -b "$budget" -n "$output" --lookup off --lanes $count --lines --input-ids -
    done
    head -n 1 "$work/in" >"$work/one"
    mv "$work/one" "$work/in"
    run beams-4 -m "$lanes_model" -b "$budget" -n "$output" --lookup off --num-beams 4 --input-ids -
}

part_lanes() {
    lanes_model=$model
    if [ ! -d "$model" ]; then
        made "$model" "$build/benchmarks/narrows-generate" "$model"
        lanes_model=$path
    fi
    ids=$(awk -v n="$input" 'BEGIN { for (i = 1; i < n; i++) printf "%d ", 3 + i * 7; print 1 }')
    repeated lanes_turn
    echo "lanes: $model, $budget, $input tokens in, $output out"
    compare 'tokens a second while decoding' lanes-16 '16 / $2' lanes-1 '1 / $2'
    compare 'tokens a second, the whole run' lanes-16 '$3 / $1' lanes-1 '$3 / $1'
    compare 'seconds of a pass' beams-4 '$2' lanes-1 '$2'
    compare 'seconds of the whole run' beams-4 '$1' lanes-1 '$1'
}

# ---- lines ---------------------------------------------------------------------------------------------------------------------------

lines_turn() {
    for lines in mixed equal; do
        run "$lines" -m "$path" -b "$lines_budget" -n 40 --lookup off --lanes 16 --lines -f "$work/$lines"
    done
}

# The grown model, and a quarter of its size.
find_grown() {
    path=$numbers
    [ "$size" = 0 ] || made "grown-$size" "$build/benchmarks/narrows-grow" --target-size "$size" "$numbers"
    quarter=$(du -sb "$path" | awk '{ printf "%.0f", $1 / 4 }')
}

part_lines() {
    find_grown
    sed -n 's/^{"text": "\([^"\\]*\)", "input_ids.*/\1/p' "$numbers/vectors.jsonl" |
        awk '{ text[NR] = $0 } END { for (i = 0; i < 1000; i++) print text[i * 61 % NR + 1] }' >"$work/mixed"
    # 19 tokens in, 7 out: as long as the others in the mean.
    yes 'translate digits to French: 152014' | head -n 1008 >"$work/equal"
    for lines_budget in ${budgets:-$((quarter * 9 / 5))}; do
        rm -f "$work/runs.mixed" "$work/runs.equal"
        repeated lines_turn
        echo "lines: numbers-t5 grown to $size, budget $lines_budget; $(median '$5' mixed) encoder passes," \
            "$(median '$3 / $4' mixed) tokens for each pass of the decoder; equal ones $(median '$5' equal)," \
            "$(median '$3 / $4' equal)"
        compare 'tokens a second, the whole run' mixed '$3 / $1' equal '$3 / $1'
    done
}

# ---- guesses -------------------------------------------------------------------------------------------------------------------------

guesses_turn() {
    for lookup in on off; do
        run "$where-$lookup" -m "$path" -b "$guess_budget" -n 64 --min-new-tokens 64 --do-sample --temperature 1000 --top-k 0 \
            --lookup $lookup --input-ids -
    done
}

part_guesses() {
    find_grown
    { seq 3 639 && echo 1; } | tr '\n' ' ' >"$work/in"
    for where in streamed resident; do
        guess_budget=$quarter
        [ $where = streamed ] || guess_budget=$((quarter * 5 + 268435456))
        repeated guesses_turn
        echo "guesses, $where: $(median '$6' $where-on) in vain, $(median '$7' $where-on) right, in 64 tokens"
        compare 'seconds of a pass' $where-on '$2' $where-off '$2'
        compare 'seconds of the whole run' $where-on '$1' $where-off '$1'
    done
}

for part in $parts; do
    "part_$part"
done
