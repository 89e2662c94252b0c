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
    printf "six\nabc$bytes\n\n" >"$work/bad"
    run run -m "$model" -b 64M -n 4 --lines -f "$work/bad"
    expect_status 2
    err_has 'line 2 is not UTF-8 at byte 3'
    [ "$(wc -l <"$work/out")" -eq 3 ] && [ -z "$(tail -n 2 "$work/out" | tr -d '\n')" ] || fail "$ran: not 2 empty lines"
done
printf 'six\000 hundred \303\237 \342\202\254 \360\237\230\200' >"$work/good"
run run -m "$model" -b 64M -f "$work/good"
expect_status 0

refused 2 'id 768 is out of range: vocab_size is 768' run -m "$model" -b 64M --input-ids '5 768 1'
refused 2 'is not a token id' run -m "$model" -b 64M --input-ids '5 -1'
run run -m "$model" -b 64M --lines --input-ids '5
x'
expect_status 2
err_has "line 2: 'x' is not a token id"
[ "$(wc -l <"$work/out")" -eq 2 ] && [ -z "$(tail -n 1 "$work/out")" ] || fail "$ran: not an empty line"

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
    for help in --help 'run --help' 'run --usage' 'pack --help' 'unpack --help' 'verify --help' 'embed --help' 'info --help' \
        'plan --help' 'tokenize --help' 'help detokenize' --version; do
        "$narrows" $help >/dev/full 2>"$work/err"
        status=$? ran="narrows $help >/dev/full"
        expect_status 5
        err_has 'No space left'
    done
fi

# A model that does not open is all that is said; one that does, of a budget that was chosen.
refused 2 'No such file' run -m "$work/none" x
refused 2 'No such file' embed -m "$work/none" x
refused 2 'No such file' plan -m "$work/none"
run run -m "$model" 'six hundred twelve'
expect_status 0
err_has '^narrows: budget: .* (auto: '

# More than the machine has is no budget, for whatever command, unless one insists.
for command in run embed pack unpack; do
    case $command in
    *pack) refused 3 'budget 999T is above the' $command -q -b 999T "$model" "$work/x" ;;
    *) refused 3 'budget 999T is above the' $command -q -b 999T -m "$model" x ;;
    esac
done
[ ! -e "$work/x" ] || fail 'a budget that is refused leaves something'
run pack -q -b 999T --force "$model" "$work/forced"
expect_status 0
refused 3 'budget 999T is above the' verify -q -b 999T "$work/forced"
run verify -q -b 999T --force "$work/forced"
expect_status 0
run unpack -q -b 999T --force "$work/forced" "$work/forced.unpacked"
expect_status 0

# A file that is anything at all.
echo 'All happy families are alike; every unhappy family is unhappy in its own way.' >"$work/novel"
for name in novel novel.bin novel.safetensors; do
    [ -e "$work/$name" ] || cp "$work/novel" "$work/$name"
    refused 4 "$name' is not a safetensors file, and no PyTorch one (zip or pickle)$" run -b 64M -m "$work/$name" x
done

# Weights alone: what is missing, and what to do about it.
mkdir "$work/alone"
cp "$model/model.safetensors" "$model/config.json" "$work/alone"
refused 6 "no spiece.model in .*(--tokenizer names another, --input-ids needs none)" run -b 64M -m "$work/alone" x
refused 6 "no spiece.model in .*(--tokenizer names another, --input-ids needs none)" embed -b 64M -m "$work/alone" x
run run -b 64M -m "$work/alone" --tokenizer "$model" 'six hundred twelve'
expect_status 0
run run -b 64M -m "$work/alone" -n 4 --input-ids '5 1'
expect_status 0

# A path is bytes; JSON is UTF-8 whatever they are.
odd=$(printf '%s/m\377\303(\342\202' "$work")
mkdir "$odd" 2>/dev/null && cp "$model"/* "$odd"
if [ -f "$odd/config.json" ]; then
    for args in 'info --json' 'info --json --tensors' 'plan --json -b 64M -m' 'run --json -b 64M x -m'; do
        run $args "$odd"
        expect_status 0
        out_is_json
    done
    run pack -q --json "$odd" "$odd.pack"
    expect_status 0
    out_is_json
    out_has "$(printf 'm\357\277\275\357\277\275(\357\277\275\357\277\275.pack"')"
    flip "$odd.pack/pack-00001-of-00001.nwp" 99999
    run verify --json "$odd.pack"
    expect_status 5
    out_is_json
    run verify --json "$odd"
    expect_status 4
    out_is_json
fi

# A reader that leaves early: quiet.
yes 'six hundred' | head -n 300 >"$work/many"
"$narrows" run -m "$model" -b 64M --lines -f "$work/many" 2>"$work/err" | head -n 1 >"$work/out"
ran='narrows run | head -n 1'
err_empty
[ "$(wc -l <"$work/out")" -eq 1 ] || fail 'no first line'
finish
