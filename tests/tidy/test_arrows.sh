# test_arrows.sh BUILD SOURCE: a module cannot include what it must not see. For one file of each module the compile
# command of this build is taken, and with it a file with one include is compiled: what is allowed must compile, what is
# not must not be found.
commands=$1/compile_commands.json
[ -r "$commands" ] || { echo "no $commands"; exit 1; }
work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-arrows.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# command_of FILE: the command that compiles SOURCE/FILE, without its input and output
command_of() {
    awk -v file="$2/$1" '
        /^ *"command": / { command = $0 }
        /^ *"file": / && index($0, "\"" file "\"") { print command; exit }' "$commands" |
        sed 's/^ *"command": "//; s/",$//; s/\\"/"/g; s/ -o [^ ]* -c [^ ]*$//'
}

# module FILE ALLOWED FORBIDDEN: lists of headers
module() {
    command=$(command_of "$1" "$source_dir")
    [ -n "$command" ] || { echo "FAILED: no compile command for $1"; failures=1; return; }
    for header in $2; do
        compiles "$header" || { echo "FAILED: $1 cannot include $header:"; head -n 3 "$work/err"; failures=1; }
    done
    for header in $3; do
        if compiles "$header"; then
            echo "FAILED: $1 can include $header"
            failures=1
        elif ! grep -qE 'No such file|not found' "$work/err"; then
            echo "FAILED: $1 with $header fails for another reason:"
            head -n 3 "$work/err"
            failures=1
        fi
    done
}

compiles() {
    printf '#include "%s"\nextern int nothing;\n' "$1" >"$work/try.c"
    # The command is the build's own, quoted for a shell.
    (cd "$work" && eval "$command -fsyntax-only -c try.c") 2>"$work/err"
}

source_dir=$2
module runtime/base/error.c 'base/error.h base/json.h' 'loader/io.h model/config.h narrows.h plan.h'
module loader/checkpoint.c 'loader/checkpoint.h base/memory.h' 'model/config.h model/kernels.h narrows.h plan.h options.h'
module model/config.c 'model/config.h base/json.h' 'loader/io.h loader/checkpoint.h narrows.h plan.h options.h'
module model/kernels/kernels_portable.c 'model/kernels.h base/check.h' 'loader/io.h narrows.h plan.h'
module runtime/model.c 'narrows.h loader/io.h model/forward.h' 'options.h temp_dir.h'
module tools/main.c 'narrows.h base/error.h base/log.h' 'loader/checkpoint.h model/config.h plan.h model_state.h'
module benchmarks/bench_kernels.c 'model/kernels.h' 'narrows.h plan.h loader/io.h'
exit $failures
