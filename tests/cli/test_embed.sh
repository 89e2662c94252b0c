# embed: states and vectors, as files and as JSON: shapes, bytes, what is refused, and what is not left behind.
. "$(dirname "$0")/cli_common.sh"

text='translate English to German: eight hundred and seventy-six'
ids='11 10 5 4 9 6 14 3 7 15 8 63 20 3 18 55 12 41 1'
d=128

# header FILE: of a .safetensors; data FILE: what is behind it
header_bytes() { od -An -t u8 -N 8 "$1" | tr -d ' '; }
header() { tail -c +9 "$1" | head -c "$(header_bytes "$1")"; }
data() { tail -c "+$((9 + $(header_bytes "$1")))" "$1"; }
header_has() { header "$1" | grep -qF -- "$2" || fail "$ran: the header of $1 lacks $2: $(header "$1" | cut -c 1-300)"; }
npy_has() { head -c 128 "$1" | grep -qaF -- "$2" || fail "$ran: the header of $1 lacks $2"; }
npy_data() { tail -c +129 "$1"; }
is_size() { [ "$(wc -c <"$1")" -eq "$2" ] || fail "$ran: $1 has $(wc -c <"$1") bytes, not $2"; }
# part FILE ROW COUNT: rows of d_model floats of an .npy
part() { npy_data "$1" | tail -c "+$(($2 * d * 4 + 1))" | head -c "$(($3 * d * 4))"; }
same() { cmp -s "$1" "$2" || fail "$ran: $1 and $2 differ"; }
floats() { od -An -v -t f4 -w4 "$1" | tr -d ' '; }
# ok ARGS...: of embed, with the model, under 64M
ok() {
    run embed -m "$model" -b 64M "$@"
    expect_status 0
}

# One text: its states, ids and mask; the same from its ids, and as .npy.
ok -o "$work/one.safetensors" "$text"
err_empty
[ ! -s "$work/out" ] || fail "$ran: something on stdout"
header_has "$work/one.safetensors" '"states":{"dtype":"F32","shape":[19,128],"data_offsets":[0,9728]}'
header_has "$work/one.safetensors" '"input_ids":{"dtype":"I32","shape":[19],"data_offsets":[9728,9804]}'
header_has "$work/one.safetensors" '"attention_mask":{"dtype":"I32","shape":[19],"data_offsets":[9804,9880]}'
data "$work/one.safetensors" >"$work/one.data"
is_size "$work/one.data" 9880
[ "$(tail -c 152 "$work/one.data" | od -An -v -t d4 -w152 | tr -s ' ')" = " $ids 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1" ] ||
    fail "$ran: other ids or mask"
ok -o "$work/ids.safetensors" --input-ids "$ids"
same "$work/one.safetensors" "$work/ids.safetensors"
ok -o "$work/one.npy" "$text"
is_size "$work/one.npy" $((128 + 19 * d * 4))
[ "$(head -c 10 "$work/one.npy" | od -An -t x1 | tr -d ' ')" = 934e554d505901007600 ] || fail "$ran: no .npy of version 1.0"
npy_has "$work/one.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (19,128), }"
head -c 9728 "$work/one.data" >"$work/want"
npy_data "$work/one.npy" >"$work/have"
same "$work/want" "$work/have"

# Budgets, threads, readers and kernels change no bit.
for options in '-t 1' '-t 3' '--io threads' '--window 1M' '--pins off' '--pins 300K' '--prefetch off' '--kernels portable' '-v'; do
    rm -f "$work/other.npy"
    ok $options -o "$work/other.npy" "$text"
    same "$work/one.npy" "$work/other.npy"
done
err_has '^narrows: peak .* of 64M, .* read, 1 texts'

# Padding: masked pads leave the tokens' states as they are; zero ones are zero; attended ones change them.
for options in '' '--mask on' '--zero-pad' '--mask off' '--mask off --zero-pad'; do
    name=$work/pad-$(echo "$options" | tr -d ' ')
    ok --pad-to 24 $options -o "$name.npy" "$text"
    npy_has "$name.npy" "'shape': (24,128)"
    is_size "$name.npy" $((128 + 24 * d * 4))
    part "$name.npy" 0 19 >"$name.tokens"
    part "$name.npy" 19 5 >"$name.pads"
done
head -c 2560 /dev/zero >"$work/zeros"
for name in pad- pad---maskon pad---zero-pad; do same "$work/want" "$work/$name.tokens"; done
same "$work/pad---maskoff.tokens" "$work/pad---maskoff--zero-pad.tokens"
! cmp -s "$work/want" "$work/pad---maskoff.tokens" || fail 'the mask is of no effect'
same "$work/zeros" "$work/pad---zero-pad.pads"
same "$work/zeros" "$work/pad---maskoff--zero-pad.pads"
! cmp -s "$work/zeros" "$work/pad-.pads" || fail 'masked pads have no states'
same "$work/pad-.npy" "$work/pad---maskon.npy"
ok --pad-to 24 --mask off -o "$work/pad.safetensors" "$text"
header_has "$work/pad.safetensors" '"attention_mask":{"dtype":"I32","shape":[24],'
[ "$(data "$work/pad.safetensors" | tail -c 192 | od -An -v -t d4 -w192 | tr -s ' ')" = \
    " $ids 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 0 0 0 0 0" ] || fail "$ran: other ids or mask"
# The same ids, pads among them, are what attended pads are.
ok -o "$work/as-ids.npy" --input-ids "$ids 0 0 0 0 0"
same "$work/pad---maskoff.npy" "$work/as-ids.npy"
# Longer texts are cut to it, their end token last.
ok --pad-to 8 -o "$work/cut.safetensors" "$text"
err_has 'cut from 19 to 8 tokens'
[ "$(data "$work/cut.safetensors" | tail -c 64 | od -An -v -t d4 -w64 | tr -s ' ')" = " 11 10 5 4 9 6 14 1 1 1 1 1 1 1 1 1" ] ||
    fail "$ran: other ids or mask"

# Lines: one tensor of all when padded, else one each; an empty line is one end token.
printf '%s\n\nsix hundred\n' "$text" >"$work/lines"
ok --lines -f "$work/lines" --pad-to 20 --zero-pad -o "$work/lines.safetensors"
header_has "$work/lines.safetensors" '"states":{"dtype":"F32","shape":[3,20,128],"data_offsets":[0,30720]}'
header_has "$work/lines.safetensors" '"input_ids":{"dtype":"I32","shape":[3,20],'
header_has "$work/lines.safetensors" '"attention_mask":{"dtype":"I32","shape":[3,20],'
data "$work/lines.safetensors" | head -c 9728 >"$work/have"
same "$work/want" "$work/have"
ok --lines -f "$work/lines" --pad-to 20 --zero-pad -o "$work/lines.npy"
npy_has "$work/lines.npy" "'shape': (3,20,128)"
data "$work/lines.safetensors" | head -c 30720 >"$work/want-lines"
npy_data "$work/lines.npy" >"$work/have"
same "$work/want-lines" "$work/have"
# However pads are treated, each line has what it has alone.
for options in '' '--zero-pad' '--mask off' '--mask off --zero-pad'; do
    ok --lines -f "$work/lines" --pad-to 20 $options -o "$work/together.npy"
    : >"$work/alone"
    while IFS= read -r line; do
        rm -f "$work/line.npy"
        ok --pad-to 20 $options -o "$work/line.npy" -- "$line"
        npy_data "$work/line.npy" >>"$work/alone"
    done <"$work/lines"
    npy_data "$work/together.npy" | cmp -s - "$work/alone" || fail "--pad-to 20 $options: other states in lines"
    rm -f "$work/together.npy"
done
ok --lines -f "$work/lines" -o "$work/each.safetensors"
header_has "$work/each.safetensors" '"states.0":{"dtype":"F32","shape":[19,128],'
header_has "$work/each.safetensors" '"states.1":{"dtype":"F32","shape":[1,128],'
header_has "$work/each.safetensors" '"input_ids.2":{"dtype":"I32","shape":['
data "$work/each.safetensors" | head -c 9880 >"$work/have"
same "$work/one.data" "$work/have"
ok -o "$work/empty.npy" ''
ok -o "$work/end.npy" --input-ids 1
same "$work/empty.npy" "$work/end.npy"
: >"$work/nothing"
ok --lines -f "$work/nothing" --pad-to 4 -o "$work/none.npy"
npy_has "$work/none.npy" "'shape': (0,4,128)"
ok --lines -f "$work/nothing"
[ ! -s "$work/out" ] || fail "$ran: something on stdout"

# Vectors: the mean over the tokens, as numbers that read back, one object a line.
ok --lines -f "$work/lines"
err_empty
[ "$(wc -l <"$work/out")" -eq 3 ] || fail "$ran: not one object a line"
out_has '^{"prompt_tokens": 19, "embedding": \[-*[0-9.e, -]*\]}$'
out_has '^{"prompt_tokens": 1, "embedding": \['
cp "$work/out" "$work/vectors"
ok --lines -f "$work/lines" --pool mean -o "$work/mean.npy"
npy_has "$work/mean.npy" "'shape': (3,128)"
part "$work/mean.npy" 0 1 >"$work/mean.0"
head -n 1 "$work/vectors" | sed 's/.*\[\(.*\)\].*/\1/' | tr -d ' ' | tr , '\n' >"$work/numbers"
floats "$work/mean.0" >"$work/mean.text"
paste "$work/numbers" "$work/mean.text" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-6) bad = 1 } END { exit bad || NR != 128 }' ||
    fail 'JSON and .npy have other vectors'
floats "$work/want" | awk -v d=$d '{ s[(NR - 1) % d] += $1 } END { for (i = 0; i < d; i++) print s[i] / (NR / d) }' >"$work/means"
paste "$work/numbers" "$work/means" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5) bad = 1 } END { exit bad || NR != 128 }' ||
    fail 'a vector is not the mean of the states'
# Masked pads change nothing of a mean; it has length 1 if that is asked for.
ok --lines -f "$work/lines" --pad-to 30
same "$work/vectors" "$work/out"
ok --normalize "$text"
sed 's/.*\[\(.*\)\].*/\1/' "$work/out" | tr , '\n' | awk '{ s += $1 * $1 } END { exit s < 0.99999 || s > 1.00001 || NR != 128 }' ||
    fail "$ran: not of length 1"
ok -v "$text"
out_has '"stats": {"budget_bytes": 67108864, "peak_rss_bytes": [0-9]*, "bytes_read": [0-9]*, "seconds_load": [0-9.e-]*, "seconds_encode": [0-9.e-]*, "io": "[a-z]*", "threads": [0-9]*}}$'
printf '%s' "$text" >"$work/text"
input=$work/text run embed -m "$model" -b 64M
expect_status 0
head -n 1 "$work/vectors" >"$work/want-one"
same "$work/want-one" "$work/out"
run embed -m "$data/goldens/encoder-only" -b 64M --input-ids '5 6 1'
expect_status 0
out_has '^{"prompt_tokens": 3, "embedding": \['
ok -o "$work/one.npy" 'six hundred' # replaced
is_size "$work/one.npy" $((128 + 3 * d * 4))

# Ten texts read the encoder once when there is room, and again and again when there is none.
reads() { sed -n 's/.*"bytes_read": \([0-9]*\).*/\1/p' "$work/out"; }
for i in 1 2 3 4 5 6 7 8 9 10; do echo "$text"; done >"$work/ten"
run plan "$model" -b 64M --embed --json
first=$(sed -n 's/.*"first_pass":[[:space:]]*\([0-9]*\).*/\1/p' "$work/out")
out_has '"encode_only":[[:space:]]*true'
out_has '"encoder.block.3":.*"pinned"'
! grep -q '"decoder' "$work/out" || fail "$ran: a decoder in the plan"
run plan "$model" -b 64M --embed
out_has 'all of the encoder stays resident'
ok -v --lines -f "$work/ten"
[ "$(reads | sort -u | wc -l)" -eq 1 ] || fail "$ran: later texts read something"
# One pass is for as many texts as there is room for; the states are those of each alone.
ok -v --lines -f "$work/ten" --pins off
[ "$(reads | tail -n 1)" -lt $((2 * first)) ] || fail "$ran: the encoder is read again for ten texts of one pass"
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    cat "$work/lines" "$work/ten"
done | head -n 130 >"$work/mixed"
ok --lines -f "$work/mixed" --pool mean -o "$work/waves.npy"
run embed -m "$model" -b 14M --lines -f "$work/mixed" --pool mean -o "$work/small.npy"
expect_status 0
same "$work/waves.npy" "$work/small.npy"
head -n 3 "$work/mixed" | cmp -s - "$work/lines" || fail 'not these lines first'
part "$work/waves.npy" 0 3 >"$work/have"
npy_data "$work/mean.npy" | cmp -s - "$work/have" || fail 'texts of a wave have other vectors'
run embed -m "$model" -b 14M -v --lines -f "$work/mixed" --pins off
expect_status 0
waves=$(reads | uniq | wc -l)
[ "$waves" -gt 1 ] && [ "$waves" -lt 65 ] || fail "$ran: $waves waves of 130 texts"
bytes=$(($(reads | tail -n 1) - $(reads | head -n 1)))
[ "$bytes" -ge $(((waves - 2) * first)) ] && [ "$bytes" -le $((waves * first)) ] ||
    fail "$ran: $bytes bytes are not $((waves - 1)) passes of $first"

# The smallest budget that a refusal names works, stays below it, and changes no bit.
refused 3 'budget 12M is too small: needs [0-9.]*M for 19 tokens in$' embed -m "$model" -b 12M --max-input-tokens 19 "$text"
smallest=$(sed -n 's/.*needs \([0-9.]*M\) for.*/\1/p' "$work/err")
run embed -m "$model" -b "${smallest:-64M}" -o "$work/small.npy" "$text"
expect_status 0
npy_data "$work/small.npy" >"$work/have"
same "$work/want" "$work/have"
run run -m "$model" -b "${smallest:-1M}" "$text"
expect_status 3 # answering takes more
refused 3 'for 512 tokens in' embed -m "$model" -b 1M x

# Mistakes, each before anything is written.
o=$work/refused
refused 2 'no model: -m' embed x
refused 2 'more than one text' embed -m "$model" two words
refused 2 'exclude each other' embed -m "$model" -f /dev/null x
refused 2 'end in .safetensors or .npy' embed -m "$model" -o "$o.bin" x
refused 2 'one array.*--pad-to' embed -m "$model" --lines -o "$o.npy" -f "$work/lines"
refused 2 'states need a file' embed -m "$model" --pool none x
refused 2 'is not mean or none' embed -m "$model" --pool max x
refused 2 'normalize needs' embed -m "$model" --normalize -o "$o.npy" x
refused 2 'needs --pad-to' embed -m "$model" --mask off x
refused 2 'needs --pad-to' embed -m "$model" --zero-pad x
refused 2 'is not on or off' embed -m "$model" --pad-to 4 --mask maybe x
for number in 0 -3 x 1.5 '' 99999999999999999999; do
    refused 2 'pad-to' embed -m "$model" -b 64M --pad-to "$number" x
done
refused 2 'exclude each other' embed -m "$model" --json -o "$o.npy" x
refused 2 'out of range' embed -m "$model" -b 64M --input-ids '5 999999' -o "$o.npy"
refused 2 'empty prompt' embed -m "$model" -b 64M --input-ids '' -o "$o.npy"
refused 2 'no/such' embed -m /no/such -b 64M x
refused 6 'spiece.model' embed -m "$data/goldens/t5-v1.1" -b 64M -o "$o.npy" x
refused 5 'no/such' embed -m "$model" -b 64M -o "$work/no/such.npy" x
[ -z "$(ls "$work" | grep refused)" ] || fail "something was written: $(ls "$work" | grep refused)"
run embed -m "$model" -b 64M -o "$work/kept.npy" x
cp "$work/kept.npy" "$work/kept"
"$narrows" embed -m "$model" -b 64M "$text" >/dev/full 2>"$work/err"
status=$? ran='narrows embed >/dev/full'
expect_status 5

# Interrupted: no file, not even a part of one, and what was there before stays.
yes "$text" | head -n 20000 >"$work/many"
mkdir "$work/there"
cp "$work/kept" "$work/there/states.safetensors"
for signal in INT TERM; do
    interrupt $signal '[ "$(ls -A "$work/there" | wc -l)" -ge 2 ]' \
        embed -m "$model" -b 64M --lines -f "$work/many" -o "$work/there/states.safetensors"
    err_has '^narrows: peak .* texts'
    [ "$(ls -A "$work/there")" = states.safetensors ] || fail "$ran: it left $(ls -A "$work/there")"
    same "$work/kept" "$work/there/states.safetensors"
done
finish
