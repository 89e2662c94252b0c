# What this machine's release build computes and what the emulated program computes are the same bits: encoder states,
# logits, and packs. Both run the fastest kernels they have.
. "$(dirname "$0")/../cli/cli_common.sh"
emulated=$narrows
here=$2/build/narrows
[ -x "$here" ] || { echo "skipped: there is no $here to compare with"; exit 77; }

# both NAME ARGS...: the two programs write $work/here and $work/there, which end in NAME
both() {
    name=$1
    shift
    rm -rf "$work/here$name" "$work/there$name"
    narrows=$here run "$@" "$work/here$name"
    expect_status 0
    narrows=$emulated run "$@" "$work/there$name"
    expect_status 0
    [ -e "$work/here$name" ] && diff -rq "$work/here$name" "$work/there$name" >/dev/null || fail "$ran: not the same bits"
}

ids='17 5 40 33 12 8 25 31 9 44 6 13 22 38 7 50 11 3 1'
for golden in byt5 flan-bf16-shards flan-f16 gelu-exact odd-sizes t5-v1.1 ul2 umt5; do
    set -- -m "$data/goldens/$golden" -b 256M --input-ids "$ids"
    both .safetensors embed "$@" -o
    both .safetensors run "$@" -n 6 --scores-kind raw --scores
done
for compress in packed slim; do
    both .pack pack --compress $compress "$data/goldens/flan-bf16-shards"
done
for type in q8 q4; do
    both .pack pack --dtype $type "$data/goldens/flan-bf16-shards"
    both .safetensors run -m "$work/there.pack" -b 256M --input-ids "$ids" -n 6 --scores-kind raw --scores
done

finish
