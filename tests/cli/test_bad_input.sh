# What cannot work: the right status, one line that says what and where, nothing on stdout.
. "$(dirname "$0")/cli_common.sh"

refused 2 'empty prompt' run -m "$model" -b 64M
refused 2 'empty prompt' run -m "$model" -b 64M ''
: >"$work/empty"
refused 2 'empty prompt' run -m "$model" -b 64M -f "$work/empty"
refused 2 'empty prompt' run -m "$model" -b 64M --input-ids ' '
refused 2 '/no/such' run -m "$model" -b 64M -f /no/such
refused 5 'directory' run -m "$model" -b 64M -f "$work"

# Invalid UTF-8: a lone continuation, overlong, a surrogate, above U+10FFFF, cut short.
for bytes in '\200' '\300\200' '\340\200\200' '\355\240\200' '\364\220\200\200' '\377' '\342\202' '\360\237\230'; do
    printf "abc$bytes" >"$work/bad"
    refused 2 'not UTF-8 at byte 3$' run -m "$model" -b 64M -f "$work/bad"
    printf "six\nabc$bytes\n" >"$work/bad"
    refused 2 'line 2 is not UTF-8 at byte 3' run -m "$model" -b 64M --lines -f "$work/bad"
done
printf 'six\000 hundred \303\237 \342\202\254 \360\237\230\200' >"$work/good"
run run -m "$model" -b 64M -f "$work/good"
expect_status 0

refused 2 'id 768 is out of range: vocab_size is 768' run -m "$model" -b 64M --input-ids '5 768 1'
refused 2 'is not a token id' run -m "$model" -b 64M --input-ids '5 -1'
refused 2 "line 2: 'x' is not a token id" run -m "$model" -b 64M --lines --input-ids '5
x'

# A model that is no model, and one that is cut.
cp -r "$model" "$work/cut"
chmod -R u+w "$work/cut"
head -c 100000 "$model/model.safetensors" >"$work/cut/model.safetensors"
refused 4 'model.safetensors' run -m "$work/cut" -b 64M x
refused 4 'model.safetensors' info "$work/cut"
refused 4 'model.safetensors' plan "$work/cut" -b 64M
cp "$model/model.safetensors" "$work/cut/model.safetensors"
head -c 1000 "$model/spiece.model" >"$work/cut/spiece.model"
refused 6 'spiece.model' run -m "$work/cut" -b 64M x
rm "$work/cut/spiece.model"
refused 6 'spiece.model' run -m "$work/cut" -b 64M x
echo '{"model_type": "bert"}' >"$work/cut/config.json"
refused 4 'config.json' run -m "$work/cut" -b 64M x
mkdir "$work/hollow"
run run -m "$work/hollow" -b 64M x
[ "$status" -ne 0 ] && [ ! -s "$work/out" ] || fail "$ran: a directory without a model"

# A full disk under stdout.
if [ -w /dev/full ]; then
    for options in '' '--json' '--lines'; do
        "$narrows" run -m "$model" -b 64M $options six >/dev/full 2>"$work/err"
        status=$? ran="narrows run $options >/dev/full"
        : >"$work/out"
        expect_status 5
        err_has 'No space left'
    done
    "$narrows" --help >/dev/full 2>"$work/err"
    [ $? -eq 5 ] || fail 'help to a full disk'
fi

# A reader that leaves early: quiet.
yes 'six hundred' | head -n 300 >"$work/many"
"$narrows" run -m "$model" -b 64M --lines -f "$work/many" 2>"$work/err" | head -n 1 >"$work/out"
ran='narrows run | head -n 1'
err_empty
[ "$(wc -l <"$work/out")" -eq 1 ] || fail 'no first line'
finish
