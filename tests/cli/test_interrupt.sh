# ^C and SIGTERM: the run ends within a tile, says what it has done, and exits with 130.
. "$(dirname "$0")/cli_common.sh"

yes 'translate English to German: eight hundred and seventy-six thousand, five hundred and forty-eight' | head -n 20000 >"$work/many"
for signal in INT TERM; do
    # The first line is out: the session is at work.
    interrupt $signal '[ -s "$work/out" ]' run -m "$model" -b 64M --lines -f "$work/many"
    err_has '^narrows: peak .* tokens'
    [ "$(wc -l <"$work/out")" -lt 20000 ] || fail "$ran: it ran to its end"
done

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
finish
