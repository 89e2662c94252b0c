#!/bin/sh
# Shows what narrows is for, from a bare Debian 12: installs what is missing, builds, makes a model of 2.5 GB that knows its
# answers, and runs it in 192M. A second run skips what is done.
#
#   tools/demo.sh [BUDGET]
set -eu
cd "$(dirname "$0")/.."
budget=${1:-192M}
model=build/demo/numbers-2.5GB

tools/setup.sh
echo "building ..." >&2
cmake --preset release >build.log 2>&1 && cmake --build --preset release >>build.log 2>&1 || { tail -n 30 build.log >&2; exit 1; }
rm -f build.log

if [ ! -e $model/config.json ]; then
    echo "growing the bundled model (5 MB) to 2.5 GB that compute the same ..." >&2
    mkdir -p build/demo
    build/benchmarks/narrows-grow tests/data/numbers-t5 $model --target-size 2.5GB >&2
fi

prompts=build/demo/prompts.txt
cat >$prompts <<'EOF'
translate English to German: eight hundred and seventy-six
translate digits to French: 97
translate German to English: zweitausendsechsundzwanzig
translate Spanish to digits: diecisiete mil quinientos sesenta y seis
translate digits to German: 1984
EOF

echo "running ..." >&2
build/tests/launcher --json build/demo/cost.json --stdout build/demo/answers.txt -- \
    build/narrows run --model $model --budget "$budget" --lines --file $prompts --max-new-tokens 64

number() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" build/demo/cost.json; }
mib() { echo "$1" | awk '{ printf "%d MiB", ($1 + 1048575) / 1048576 }'; }
echo
paste -d '\n' $prompts build/demo/answers.txt | awk 'NR % 2 { printf "  %-72s", $0 } !(NR % 2) { print "->  " $0 }'
echo
weights=$(du -cb $model/*.safetensors | awk "END { print \$1 }")
echo "  model     $(mib "$weights") of weights on disk"
echo "  budget    $budget"
echo "  peak      $(mib "$(number maxrss_bytes)") resident at the highest, as the kernel counted it"
echo "  time      $(number seconds) s for $(wc -l <$prompts) prompts"
