// layover: the coordinator and the command line in one program. What a verb does stands in coordinator/cli.
#include "coordinator/cli/cli.h"

int main(int argc, char** argv) { return layover::RunCli(argc, argv); }
