# sh check_tree.sh TREE COMPILER: prints one line for each place where a tree breaks a rule that a machine can check,
# as "RULE: FILE:LINE: what"; exits 1 if there is any. test_style.sh runs it on this project and on trees that break
# every rule on purpose.
here=$(cd "$(dirname "$0")" && pwd)
cd "$1" || exit 2
compiler=$2
export LC_ALL=C
work=$(mktemp -d "${TMPDIR:-/var/tmp}/narrows-tidy.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
found=$work/found
: >"$found"

report() { sed "s|^|$1: |" >>"$found"; } # RULE; lines on standard input

roots=
for root in runtime loader model tools benchmarks tests; do
    [ -d "$root" ] && roots="$roots $root"
done
[ -n "$roots" ] || exit 2
# Names of this project have no blanks: the lists can be split at them.
sources=$(find $roots -name '*.c' -o -name '*.h' -o -name '*.cc' | sort)
texts=$(find $roots $(ls -d cmake .ci .clang-format CMakeLists.txt CMakePresets.json ./*.md 2>/dev/null) \
    -type f ! -path 'tests/data/*' ! -path 'tests/fuzz/corpus/*' | sort)
awk -f "$here/code_lines.awk" $sources >"$work/code"

word='(^|[^A-Za-z0-9_])'
call='[[:space:]]*\('
# banned RULE WORDS EXCEPT: calls of WORDS in files whose names do not match EXCEPT
banned() { grep -vE "^($3)" "$work/code" | grep -E ":.*$word($2)$call" | report "$1"; }

none='/'
outer='tools/|benchmarks/|tests/'
banned 'banned call' 'strcpy|strcat|stpcpy|sprintf|vsprintf|atoi|atol|atoll|atof|alloca|gets' "$none"
banned 'exit in a library' 'exit|_exit|_Exit|quick_exit|abort' "$outer|runtime/base/check\.c:"
banned 'raw allocation' 'malloc|calloc|realloc|reallocarray|free|strdup|strndup|aligned_alloc|posix_memalign|v?asprintf|getline' \
    'benchmarks/|tests/|runtime/base/memory\.c:|tools/buffer\.c:|model/tokenizer/spiece_shim\.cc:'
banned 'printing in a library' 'printf|vprintf|dprintf|puts|putchar|perror' "$outer"
grep -vE "^($outer)" "$work/code" | grep -E ":.*$word(stdout|stderr|cout|cerr)([^A-Za-z0-9_]|\$)" | report 'printing in a library'

grep -nE "$word(FIXME|TODO|XXX)([^A-Za-z0-9_]|\$)" $texts /dev/null | grep -v '^tests/tidy/check_tree\.sh:' | report 'unfinished'
grep -nE '(^|[^A-Za-z0-9_$.}])/(wor[k]|roo[t]|hom[e]/[a-z]+)/' $texts /dev/null | report 'path of one machine'

# Characters, not bytes: continuation bytes of UTF-8 do not count.
awk '{ line = $0; gsub(/[\200-\277]/, "", line) } length(line) > 120 { print FILENAME ":" FNR ": " length(line) }' \
    $sources | report 'line above 120 columns'
wc -l $sources | awk '$2 ~ /\.c$/ && $1 > 800 { print $2 ": " $1 " lines" }' | report 'file above 800 lines'

# The list's ratchet: over the limit and not listed, over its listed number, or listed in vain.
awk -v MAX=70 -v KERNEL_MAX=120 -f "$here/function_lines.awk" "$work/code" >"$work/long"
listed=tests/tidy/long_functions.txt
[ -f "$listed" ] || listed=/dev/null
awk -v LISTED="$listed" '
    BEGIN {
        while ((getline line < LISTED) > 0) {
            if (line !~ /^#/ && split(line, part, " ") == 3)
                allowed[part[1] " " part[2]] = part[3]
        }
    }
    {
        file = $2
        sub(/:.*/, "", file)
        key = file " " $3
        if (!(key in allowed) || $1 > allowed[key])
            print $2 ": " $3 " has " $1 " lines of code"
        delete allowed[key]
    }
    END { for (key in allowed) print key ": is listed in " LISTED " and need not be" }' "$work/long" |
    report 'long function'

printf '%s\n' $texts | sed 's|.*/||' | sort | uniq -d | grep -vxE 'CMakeLists\.txt' | report 'file name used twice'

# Which module may include what. A header of its own directory is named without a path.
awk -v ROOT=. '
    function exists(path,    line, there) {
        there = (getline line < path) >= 0
        close(path)
        return there
    }
    {
        match($0, /^[^:]*:[0-9]+:/)
        place = substr($0, 1, RLENGTH - 1)
        text = substr($0, RLENGTH + 1)
        if (text !~ /^[ \t]*#[ \t]*include[ \t]*[<"]/)
            next
        quoted = text ~ /^[ \t]*#[ \t]*include[ \t]*"/
        name = text
        sub(/^[^<"]*[<"]/, "", name)
        sub(/[>"].*/, "", name)
        if (!quoted && name !~ /^(base|loader|model)\// && name !~ /(^|\/)narrows\.h$/)
            next
        file = place
        sub(/:.*/, "", file)
        dir = file
        sub(/\/[^\/]*$/, "", dir)
        own = quoted && name !~ /\// && exists(dir "/" name)
        may = ""
        if (file ~ /^runtime\/base\//)
            may = "^base/"
        else if (file ~ /^loader\//)
            may = "^(base|loader)/"
        else if (file ~ /^model\//)
            may = "^(base|model)/"
        else if (file ~ /^runtime\//)
            may = "^(base|loader|model)/|^narrows\\.h$"
        else if (file ~ /^tools\//)
            may = "^narrows\\.h$|^base/(error|log)\\.h$"
        else if (file ~ /^benchmarks\//)
            may = "^(base|loader)/|^model/kernels\\.h$|^narrows\\.h$"
        if (may != "" && !own && name !~ may)
            print place ": " name
    }' "$work/code" | report 'include against the arrows'

# Every header compiles alone, with the directories that its own module sees. A *.inc.h is a source, not a header. Those of another
# instruction set are looked at where there is a compiler for it.
base=runtime/base/include
machine=$(uname -m)
arm64_sysroot=$here/../../build/arm64-sysroot
for header in $sources; do
    case $header in
    *.inc.h) continue ;;
    *.h) ;;
    *) continue ;;
    esac
    case $header in
    runtime/base/*) dirs=$base ;;
    loader/*) dirs="$base loader/include" ;;
    model/*) dirs="$base model/include" ;;
    runtime/*) dirs="$base runtime/include loader/include model/include" ;;
    tools/*) dirs="$base runtime/include" ;;
    *) dirs="$base runtime/include loader/include model/include runtime tests/support" ;;
    esac
    flags= with=$compiler
    case $machine-$header in
    x86_64-*_neon.h)
        command -v aarch64-linux-gnu-gcc >/dev/null && [ -d "$arm64_sysroot" ] || continue
        with="aarch64-linux-gnu-gcc --sysroot=$arm64_sysroot"
        ;;
    aarch64-*_avx2.h | aarch64-*_avx512.h) continue ;;
    esac
    case $header in
    *_avx2.h) flags='-mavx2 -mfma -mf16c' ;;
    *_avx512.h) flags='-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl' ;;
    esac
    for dir in $dirs; do flags="$flags -I$dir"; done
    printf '#include "%s"\n' "$header" |
        $with -std=c11 -fsyntax-only -Wall -Wextra -Wno-unused-function -Werror -D_POSIX_C_SOURCE=200809L \
            -D_FILE_OFFSET_BITS=64 -DNW_TEST_DATA='""' -I. $flags -x c - 2>"$work/err" ||
        echo "$header: $(grep -m 1 error "$work/err")" | report 'header does not compile alone'
done

cat "$found"
[ ! -s "$found" ]
