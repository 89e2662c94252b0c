# Sourced by every test here: sh tests/cli/test_x.sh BUILD_DIR SOURCE_DIR
# Runs the program, keeps its two streams and its status, and counts what does not hold.
narrows=$1/narrows
data=$2/tests/data
model=$data/numbers-t5
[ -x "$narrows" ] || { echo "skipped: $narrows is not built"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-cli.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    sed 's/^/  stdout: /' "$work/out" | head -n 5
    sed 's/^/  stderr: /' "$work/err" | head -n 5
    failures=$((failures + 1))
}

# run ARGS...: standard input is empty unless $input names a file
run() {
    "$narrows" "$@" <"${input:-/dev/null}" >"$work/out" 2>"$work/err"
    status=$?
    ran="narrows $*"
}

expect_status() { [ "$status" -eq "$1" ] || fail "$ran: status $status, not $1"; }

# expect_out TEXT: standard output is exactly TEXT (and a newline)
expect_out() {
    printf '%s\n' "$1" >"$work/want"
    cmp -s "$work/want" "$work/out" || fail "$ran: stdout is not '$1'"
}

out_has() { grep -qe "$1" "$work/out" || fail "$ran: stdout lacks '$1'"; }
err_has() { grep -qe "$1" "$work/err" || fail "$ran: stderr lacks '$1'"; }
err_empty() { [ ! -s "$work/err" ] || fail "$ran: stderr is not empty"; }

# out_is_json [lines]: standard output is one JSON object, or one a line
json_object=$1/tests/json_object
out_is_json() {
    "$json_object" "$@" <"$work/out" 2>"$work/json_err" || fail "$ran: stdout is no JSON object: $(cat "$work/json_err")"
}

# flip FILE OFFSET: the lowest bit of one byte
flip() {
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf "$(printf '\\%03o' $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# refused STATUS PATTERN ARGS...: nothing on stdout, exactly one line on stderr, which matches
refused() {
    want=$1 pattern=$2
    shift 2
    run "$@"
    expect_status "$want"
    [ ! -s "$work/out" ] || fail "$ran: stdout is not empty"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: stderr is not one line"
    err_has '^narrows: '
    err_has "$pattern"
}

# interrupt SIGNAL CONDITION ARGS...: sends it when the shell command CONDITION holds, or after 20 s; the program ends
# with 130
interrupt() {
    signal=$1 condition=$2
    shift 2
    rm -f "$work/out"
    "$narrows" "$@" </dev/null >"$work/out" 2>"$work/err" &
    pid=$!
    tries=0
    while ! eval "$condition" && [ $tries -lt 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -"$signal" $pid
    wait $pid
    status=$? ran="narrows $1, SIG$signal"
    expect_status 130
}

# kill_after SECONDS ARGS...
kill_after() {
    seconds=$1
    shift
    "$narrows" "$@" &
    sleep "$seconds"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
}

# refused_without_room ARGS...: but for DST, which comes last, on a file system of 1 MiB: nothing is written to it
refused_without_room() {
    if [ "$(id -u)" -eq 0 ] && mkdir "$work/small" && mount -t tmpfs -o size=1M tmpfs "$work/small" 2>/dev/null; then
        refused 5 'needs [0-9]* bytes where [0-9]* are free' "$@" "$work/small/x"
        [ -z "$(ls "$work/small")" ] || fail 'something is left on a full disk'
        umount "$work/small"
    else
        echo 'no tmpfs can be mounted here: a full file system is not tested'
    fi
}

finish() {
    [ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
    exit 0
}
