# Sourced by every script here: sh tests/budget/test_x.sh BUILD_DIR SOURCE_DIR
# Runs the program at real size, under the launcher, and holds it to what the kernel counted.
build=$1
data=$2/tests/data
narrows=$build/narrows
launcher=$build/tests/launcher
generate=$build/benchmarks/narrows-generate
grow=$build/benchmarks/narrows-grow
failures=0
mib=1048576

skip() {
    echo "skipped: $*"
    exit 77
}

for program in "$narrows" "$launcher" "$generate" "$grow" "$build/tests/cached"; do
    [ -x "$program" ] || skip "$program is not built"
done
work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-test.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
: >"$work/out"
: >"$work/err"

# need_space MIB: of the disk under $work, which must be a disk
need_space() {
    case $(stat -f -c %T "$work") in
    tmpfs | ramfs) skip "$work is in memory, not on a disk: set TMPDIR" ;;
    esac
    have=$(df -Pk "$work" | awk 'NR == 2 { printf "%d", $4 / 1024 }')
    [ "$have" -ge "$1" ] || skip "$have MiB of disk are free at $work, $1 are needed"
}

fail() {
    echo "FAILED: $*"
    sed 's/^/  stdout: /' "$work/out" | cut -c 1-300 | head -n 5
    sed 's/^/  stderr: /' "$work/err" | cut -c 1-300 | head -n 5
    failures=$((failures + 1))
}

finish() {
    [ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
    exit 0
}

# make COMMAND...: makes a model, or ends the test
make() {
    "$@" >"$work/out" 2>"$work/err" || { fail "$*"; exit 1; }
}

# number KEY FILE: of a JSON file; the first one of that name
number() { sed -n "s/.*\"$1\":[[:space:]]*\([0-9][0-9]*\).*/\1/p" "$2" | head -n 1; }

# run ARGS...: of narrows, without a cgroup
run() {
    "$launcher" --json "$work/cost" --stdout "$work/out" -- "$narrows" "$@" </dev/null 2>"$work/err"
    status=$?
    ran="narrows $*"
}

# run_in BYTES ARGS...: in a memory cgroup of so many bytes; where none can be made, without one, and that is said once
cgroup_refused=
run_in() {
    bytes=$1
    shift
    status=77
    if [ -z "$cgroup_refused" ]; then
        "$launcher" --cgroup "$bytes" --json "$work/cost" --stdout "$work/out" -- "$narrows" "$@" \
            </dev/null 2>"$work/err"
        status=$?
    fi
    ran="narrows $* (in a cgroup of $bytes)"
    if [ "$status" -eq 77 ]; then
        [ -n "$cgroup_refused" ] || echo "skipped: the memory cgroup: $(head -n 1 "$work/err")"
        cgroup_refused=yes
        run "$@"
    fi
}

expect_status() { [ "$status" -eq "$1" ] || fail "$ran: status $status, not $1"; }

# within BYTES: the last run's peak, and its cgroup's, as the kernel counted them
within() {
    peak=$(number maxrss_bytes "$work/cost")
    [ "${peak:-0}" -gt 1000000 ] && [ "$peak" -le "$1" ] || fail "$ran: a peak of ${peak:-nothing} is not within $1"
    killed=$(number cgroup_oom_kills "$work/cost")
    [ "${killed:-0}" -eq 0 ] || fail "$ran: $killed killed in the cgroup"
    in_cgroup=$(number cgroup_peak_bytes "$work/cost")
    seconds=$(sed -n 's/.*"seconds": \([0-9]*\.[0-9]\).*/\1/p' "$work/cost")
    echo "  peak $((peak / 1024)) KiB${in_cgroup:+, of the cgroup $((in_cgroup / 1024)) KiB}, of $(($1 / 1024));" \
        "$seconds s: $(echo "$ran" | cut -c 1-100)"
}

# answer_ids COUNT: the first ids of a JSON answer
answer_ids() { sed -n 's/.*"ids": \[\([^]]*\)\].*/\1/p' "$work/out" | tr -d , | cut -d ' ' -f "1-$1"; }

# uncached FILE...: next to nothing of them is in the page cache, and so nothing of them is dirty
uncached() {
    bytes=$("$build/tests/cached" "$@") || fail "cached $*"
    [ "${bytes:-$mib}" -lt $mib ] || fail "$bytes bytes of the weights are in the page cache"
}

# plan FILE ARGS...: what narrows plan --json says; status as it was
plan() {
    to=$1
    shift
    "$narrows" plan --json "$@" >"$to" 2>"$work/err"
}

# planned SECTION KEY FILE: a number of a section of a plan
planned() { sed -n "/\"$1\":/,/}/p" "$3" >"$work/section" && number "$2" "$work/section"; }
