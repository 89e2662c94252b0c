/* The commands of the program. Each takes its own argv (argv[0] is the program) and returns the exit status. */
#ifndef NW_TOOLS_COMMANDS_H
#define NW_TOOLS_COMMANDS_H

int command_run(int argc, char **argv);
int command_embed(int argc, char **argv);
int command_info(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_pack(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_unpack(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_detokenize(int argc, char **argv);

#endif
