# PyTorch checkpoints as people have them: the same answers as from safetensors, tied weights counted once, one line for
# what is none.
. "$(dirname "$0")/cli_common.sh"
make_bin=$1/tests/make_bin
same=$data/goldens/t5-v1.1
ids='5 9 33 7 1'

"$make_bin" "$same" "$work/bin" && "$make_bin" "$same" "$work/shards" --shards 3 || fail 'make_bin'
run run -m "$same" -b 64M --input-ids "$ids" -n 12 --json -q
expect_status 0
sed 's/, "stats".*//' "$work/out" >"$work/want"
for m in bin shards bin/pytorch_model.bin shards/pytorch_model.bin.index.json; do
    run run -m "$work/$m" -b 64M --input-ids "$ids" -n 12 --json -q
    expect_status 0
    sed 's/, "stats".*//' "$work/out" | cmp -s - "$work/want" || fail "$ran: another answer than from safetensors"
done

# safetensors are preferred when both are there, the whole file before shards.
cp "$work/bin/pytorch_model.bin" "$work/shards/"
run info "$work/shards"
expect_status 0
grep -q 'in 1 file' "$work/out" || fail "$ran: not the one file"
cp "$same/model.safetensors" "$work/bin/"
run info "$work/bin"
expect_status 0
grep -q 'model.safetensors' "$work/out" || fail "$ran: not the safetensors file"

# A head that has the embedding's storage: both are listed, and counted once.
parameters() { sed -n 's/.*"parameters":[[:space:]]*\([0-9]*\).*/\1/p' "$work/out"; }
tensors() { sed -n 's/.*"tensor_count":[[:space:]]*\([0-9]*\).*/\1/p' "$work/out"; }
"$make_bin" "$same" "$work/tied" --tie lm_head.weight=shared.weight || fail 'make_bin --tie'
run info --json "$same"
expect_status 0
all=$(parameters) listed=$(tensors)
run info --json "$work/tied"
expect_status 0
rows=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$same/config.json")
cols=$(sed -n 's/.*"d_model": *\([0-9]*\).*/\1/p' "$same/config.json")
[ "$(parameters)" -eq $((all - rows * cols)) ] || fail "$ran: $(parameters) parameters of $all"
[ "$(tensors)" = "$listed" ] || fail "$ran: $(tensors) tensors of $listed"
run run -m "$work/tied" -b 64M --input-ids "$ids" -n 4 --json -q
expect_status 0

# What would run a program, in both forms; nothing is run.
legacy='\200\002\212\012\154\374\234\106\371\040\152\250\120\031\056\200\002M\351\003.\200\002}.'
printf "$legacy"'\200\002cos\nsystem\n(X\015\000\000\000touch %s/ranR.' "$work" >"$work/tied/pytorch_model.bin"
refused 4 "'os system'" run -m "$work/tied" -b 64M --input-ids "$ids"
[ ! -e "$work/ran" ] || fail 'a pickle was run'
printf "$legacy"'\200\002\202\001.' >"$work/tied/pytorch_model.bin"
refused 4 'opcode 0x82 (EXT1)' info "$work/tied"
head -c 100000 "$work/bin/pytorch_model.bin" >"$work/tied/pytorch_model.bin"
refused 4 'pytorch_model.bin.*cut short' info "$work/tied"
printf 'PK\003\004' >"$work/tied/pytorch_model.bin"
refused 4 'pytorch_model.bin.*too short' info "$work/tied"
finish
