# Help, versions, and mistakes in the arguments: one line with a hint, status 2.
. "$(dirname "$0")/cli_common.sh"

run --version
expect_status 0
out_has '^narrows [0-9]*\.[0-9]*\.[0-9]*$'
for help in "--help" "help" "-h"; do
    run $help
    expect_status 0
    out_has '^Usage: narrows COMMAND'
    err_empty
done
for command in run embed info plan bench tokenize detokenize; do
    for help in "$command --help" "help $command" "$command -h"; do
        run $help
        expect_status 0
        out_has "^Usage: narrows $command \[OPTION"
        out_has 'Examples:'
        err_empty
    done
done
run run --help
out_has 'budget=SIZE'
out_has 'default 256'

refused 2 'no command'
refused 2 "unknown command 'walk'" walk
# No heading of the options without any of them.
for command in run embed plan info pack unpack verify tokenize bench; do
    run $command --help
    awk '{ if (heading && NF == 0) exit 1; heading = /^ [A-Z].*:$/ }' "$work/out" ||
        fail "$ran: a heading with nothing under it"
done

refused 2 "unknown command 'walk'" help walk
refused 2 "unknown option '--bogus'.*narrows run --help" run --bogus
refused 2 "unknown option '--bogus'" run -m "$model" --bogus=3 x
refused 2 "unknown option '-Z'" run -qZ
refused 2 "'--budget' needs a value" run --budget
refused 2 "'-m' needs a value" run -m
refused 2 "'--json' takes no value" run --json=yes
refused 2 "'--max' could mean several" run --max 3
refused 2 'no model' run x
refused 2 'no model' info
refused 2 'no model' plan -b 64M
refused 2 'no model' tokenize x
refused 2 'more than one prompt' run -m "$model" two words
refused 2 'exclude each other' run -m "$model" -p x -f /dev/null
refused 2 'logprobs needs --json' run -m "$model" --logprobs x
refused 2 '/no/such' run -m /no/such -b 64M x
refused 2 '/no/such' info /no/such

for number in 0 -3 x 1.5 '' 99999999999999999999; do
    refused 2 'max-new-tokens' run -m "$model" -b 64M -n "$number" x
    refused 2 'threads' run -m "$model" -b 64M -t "$number" x
    refused 2 'max-input-tokens' run -m "$model" -b 64M --max-input-tokens "$number" x
done
for size in 0 -5 x 1.5Q 60%% '' 1e9 ' 64M' 64MM 0% 101% 99999999999T; do
    refused 2 'budget' run -m "$model" -b "$size" x
    refused 2 'budget' plan -m "$model" --ram "$size"
done
refused 2 'window' run -m "$model" -b 64M --window much x
refused 2 'pins' run -m "$model" -b 64M --pins none x
refused 2 'prefetch' run -m "$model" -b 64M --prefetch maybe x
refused 2 'io' run -m "$model" -b 64M --io mmap x
refused 2 'color' run -m "$model" -b 64M --color=blue x
refused 2 'disk-rate' plan -m "$model" --disk-rate fast
finish
