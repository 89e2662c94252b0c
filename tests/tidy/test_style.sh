# test_style.sh BUILD SOURCE: the project keeps the rules of check_tree.sh; and trees that break each of them do not.
here=$(cd "$(dirname "$0")" && pwd)
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$1/CMakeCache.txt")
[ -n "$compiler" ] || { echo "no C compiler in $1/CMakeCache.txt"; exit 1; }
tree=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-style.XXXXXX") || exit 1
trap 'rm -rf "$tree"' EXIT
failures=0

# Each line of a broken tree: what the check must say, the file, the text. Where a rule has exceptions, what it allows
# is beside it, and must not be mentioned.
plant() { # FILE TEXT
    mkdir -p "$tree/$(dirname "$1")"
    printf '%b' "$2" >>"$tree/$1"
}
repeat() { awk -v n="$1" -v text="$2" 'BEGIN { for (i = 0; i < n; i++) printf "%s", text }'; }

plant loader/copies.c '\nvoid f(char *a) { strcpy(a, ""); }\n'
plant loader/leaves.c 'void f(void) { exit(1); }\n'
plant runtime/base/check.c 'void f(void) { abort(); }\n'
plant model/takes.c 'void *f(void) { return malloc(1); }\n'
plant runtime/base/memory.c 'void *f(void) { return malloc(1); }\n'
plant runtime/says.c 'void f(void) { printf(""); }\n'
plant runtime/says_too.c 'void f(void) { fprintf(stderr, ""); }\n'
plant tools/may_say.c 'void f(void) { printf("exit(1)"); exit(1); } /* malloc(1) // strcpy(a, b) */\n'
plant model/waits.c '/* TO''DO */\n'
plant tests/where.sh "cd /wor""k/main\n"
plant tools/wide.c "$(repeat 115 x); 12345\n"
plant tools/narrow.c "/* $(repeat 114 '\303\244') */\n"
plant tools/high.c "$(repeat 801 '\\n')"
plant tools/less_high.c "$(repeat 800 '\\n')"
plant tools/endless.c "int endless(void)\n{\n$(repeat 71 ';\\n')}\n"
plant tools/long_enough.c "int long_enough(void)\n{\n$(repeat 70 ';\\n')\n/* a\n b */\n}\n"
plant model/kernels/kernel.c "int kernel(void)\n{\n$(repeat 120 ';\\n')}\n"
plant model/kernels/endless_kernel.c "int endless_kernel(void)\n{\n$(repeat 121 ';\\n')}\n"
plant tools/known.c "int known(void)\n{\n$(repeat 75 ';\\n')}\n"
plant tools/grown.c "int grown(void)\n{\n$(repeat 76 ';\\n')}\n"
plant tests/tidy/long_functions.txt 'tools/known.c known 75\ntools/grown.c grown 75\ntools/cured.c cured 80\n'
plant tools/twice.h ''
plant loader/twice.h ''
plant loader/knows_t5.c '#include "model/config.h"\n'
plant loader/knows_api.c '#include <narrows.h>\n'
plant model/reads.c '#include "loader/io.h"\n'
plant model/reaches.c '#include "../runtime/plan.h"\n'
plant tools/sees_size.c '#include "base/size.h"\n'
plant tools/sees_api.c '#include "narrows.h"\n#include "base/error.h"\n#include "base/log.h"\n#include "twice.h"\n'
plant runtime/base/leaf.c '#include "loader/io.h"\n'
plant benchmarks/forward.c '#include "model/forward.h"\n'
plant loader/include/loader/alone.h 'int f(size_t n);\n'
plant loader/include/loader/whole.h '#include <stddef.h>\nint f(size_t n);\n'

sh "$here/check_tree.sh" "$tree" "$compiler" >"$tree/said"
[ $? -eq 1 ] || { echo "FAILED: the broken tree passed"; failures=1; }
while IFS= read -r line; do
    grep -qF "$line" "$tree/said" || { echo "FAILED: not reported: $line"; failures=1; }
done <<'END'
banned call: loader/copies.c:2
exit in a library: loader/leaves.c:1
raw allocation: model/takes.c:1
printing in a library: runtime/says.c:1
printing in a library: runtime/says_too.c:1
unfinished: model/waits.c:1
path of one machine: tests/where.sh:1
line above 120 columns: tools/wide.c:1
file above 800 lines: tools/high.c
long function: tools/endless.c:2: endless
long function: model/kernels/endless_kernel.c:2: endless_kernel
long function: tools/grown.c:2: grown
long function: tools/cured.c cured
file name used twice: twice.h
include against the arrows: loader/knows_t5.c:1
include against the arrows: loader/knows_api.c:1
include against the arrows: model/reads.c:1
include against the arrows: model/reaches.c:1
include against the arrows: tools/sees_size.c:1
include against the arrows: runtime/base/leaf.c:1
include against the arrows: benchmarks/forward.c:1
header does not compile alone: loader/include/loader/alone.h
END
[ "$(wc -l <"$tree/said")" -eq 22 ] || { echo "FAILED: more or less than 22 reports:"; cat "$tree/said"; failures=1; }

sh "$here/check_tree.sh" "$2" "$compiler" || failures=1
exit $failures
