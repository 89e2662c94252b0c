/* narrows: which command, and what there is. Each command parses its own options (options.h). */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "narrows.h"
#include "print.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"run", command_run, "text in, text out, within a memory budget"},
    {"embed", command_embed, "text in, encoder states or vectors out"},
    {"info", command_info, "what a model is: family, sizes, types, files, tokenizer"},
    {"plan", command_plan, "where a budget would go, and how fast a run would be"},
    {"bench", command_bench, "how fast a run is, where its time goes, and what the limits are"},
    {"pack", command_pack, "a model rewritten to be read faster: in order, smaller, checked"},
    {"verify", command_verify, "every byte of a pack against its checksums"},
    {"unpack", command_unpack, "any model that runs, written as Hugging Face safetensors"},
    {"tokenize", command_tokenize, "text to token ids"},
    {"detokenize", command_detokenize, "token ids to text"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static int help(void)
{
    bool ok = print_text("Usage: narrows COMMAND [OPTION...]\n"
                         "Runs a T5 model that is larger than the memory it is given.\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        ok = ok && print_text("  %-12s%s\n", commands[i].name, commands[i].summary);
    ok = ok &&
         print_text("\n  narrows COMMAND --help explains a command; narrows --version says which version this is.\n\n"
                    "Examples:\n"
                    "  narrows run -m flan-t5-xl -b 1G \"translate English to German: The house is wonderful.\"\n"
                    "  narrows plan -m flan-t5-xl -b 1G\n");
    return print_finish(EXIT_DONE);
}

static int dispatch(const char *name, int argc, char **argv)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc, argv);
    }
    if (name[0] == '-')
        print_error("unknown option '%s' before the command (see narrows --help)", name);
    else
        print_error("unknown command '%s' (see narrows --help)", name);
    return EXIT_USAGE;
}

/* Files that are opened later must not become a standard stream that was closed: what is printed would land in them. In
 * the wrong direction, so that writing to such a stream still fails. And a limit on the size of files is an error of
 * the write, not the end of the program. */
static void secure_streams(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
            _exit(EXIT_INTERNAL);
    }
    signal(SIGXFSZ, SIG_IGN);
}

int main(int argc, char **argv)
{
    secure_streams();
    nw_process_setup();
    print_setup(COLOR_AUTO, false);
    if (argc < 2) {
        print_error("no command given (see narrows --help)");
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        print_text("narrows %s\n", nw_version());
        return print_finish(EXIT_DONE);
    }
    bool wants_help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (wants_help && argc == 2))
        return help();
    char  program[] = "narrows";
    char  option[] = "--help";
    char *help_argv[] = {program, option, NULL};
    if (wants_help)
        return dispatch(argv[2], 2, help_argv);
    argv[1] = program; /* getopt's idea of argv[0] */
    return dispatch(name, argc - 1, argv + 1);
}
