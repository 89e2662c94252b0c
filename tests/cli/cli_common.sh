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

finish() {
    [ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
    exit 0
}
