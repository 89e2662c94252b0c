# ^C, SIGTERM and SIGHUP: a run ends within a strip and says what it has done; pack and unpack leave nothing; all exit with
# 130. kill -9 leaves nothing that opens.
. "$(dirname "$0")/cli_common.sh"

yes 'translate English to German: eight hundred and seventy-six thousand, five hundred and forty-eight' | head -n 20000 >"$work/many"
for signal in INT TERM; do
    # The first line is out: the session is at work.
    interrupt $signal '[ -s "$work/out" ]' run -m "$model" -b 64M --lines -f "$work/many"
    err_has '^narrows: peak .* tokens'
    [ "$(wc -l <"$work/out")" -lt 20000 ] || fail "$ran: it ran to its end"
done

# A prompt of 50,000 tokens, whose attention is one job of many seconds: no piece of it is begun any more. It took 8 to 40 s on
# two cores to stop; the bound leaves room for sanitizers, under which a piece takes seconds.
yes 'six hundred and seventy-seven thousand one hundred' | head -c 200000 >"$work/long"
began=$(date +%s)
interrupt INT 'sleep 2' run -m "$model" -b 3G -f "$work/long"
[ $(($(date +%s) - began)) -lt 20 ] || fail "$ran: it took $(($(date +%s) - began)) s to stop"

# While the prompt is still being read there is nothing to stop: the program just ends.
mkfifo "$work/pipe"
"$narrows" run -m "$model" -b 64M <"$work/pipe" >"$work/out" 2>"$work/err" &
pid=$!
exec 3>"$work/pipe"
sleep 0.5
kill -INT $pid
wait $pid
status=$? ran='narrows run, waiting for its prompt, SIGINT'
exec 3>&-
expect_status 130
[ ! -s "$work/out" ] || fail "$ran: something on stdout"

# ---- pack and unpack, in the middle of what they write ----

generate=$1/benchmarks/narrows-generate
[ -x "$generate" ] || { echo "skipped: $generate is not built"; exit 77; }
"$generate" t5-base "$work/base" >"$work/out" 2>"$work/err" || { fail 'narrows-generate'; finish; }
signals='INT TERM HUP'
case $(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/self/status) in
*[13579bdf]) signals='INT TERM' ;; # under nohup SIGHUP does nothing, as it should
esac

# writing: some file that will be $dst/... holds a megabyte already
writing() { [ -n "$(find "$work" -path "$work/dst.tmp-*" -size +1024k 2>/dev/null)" ]; }
nothing_left() { [ -z "$(find "$work" -maxdepth 1 -name 'dst*')" ] || fail "$ran leaves $(ls -d "$work"/dst*)"; }

for signal in $signals; do
    for command in 'pack -q -t 1' 'unpack -q'; do
        interrupt $signal writing $command "$work/base" "$work/dst"
        nothing_left
        [ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "$ran: it says something"
    done
done

# opens_not DIR: as no pack, and no checkpoint, whatever is given beside
opens_not() {
    run verify "$1"
    [ "$status" -eq 4 ] || [ "$status" -eq 5 ] || fail "$ran: status $status for what was never finished"
    for args in "info $1" "run -b 64M --input-ids 1 -m $1 --config $work/base/config.json"; do
        run $args
        [ "$status" -eq 4 ] || [ "$status" -eq 5 ] || fail "$ran: status $status for what was never finished"
        [ ! -s "$work/out" ] || fail "$ran: something on stdout"
        [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: stderr is not one line"
    done
}

kill_in_the_middle() {
    "$narrows" "$@" "$work/base" "$work/dst" </dev/null >"$work/out" 2>"$work/err" &
    pid=$!
    tries=0
    while ! writing && [ $tries -lt 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -9 $pid
    wait $pid 2>/dev/null
    status=$? ran="narrows $1, SIGKILL"
    expect_status 137
    [ ! -e "$work/dst" ] || fail "$ran leaves $work/dst"
    for left in "$work"/dst.tmp-*; do
        [ -d "$left" ] || fail "$ran leaves no temporary directory: it was not in the middle"
        opens_not "$left"
        for file in "$left"/*; do
            run run -b 64M --input-ids 1 -m "$file" --config "$work/base/config.json"
            [ "$status" -ne 0 ] || fail "$ran: a file that was never finished runs"
        done
    done
}
kill_in_the_middle pack -q -t 1
run pack -q "$work/base" "$work/dst"
expect_status 0
run verify "$work/dst"
expect_status 0
rm -rf "$work"/dst*
kill_in_the_middle unpack -q
finish
