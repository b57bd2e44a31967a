"""The command line: verbs that parse, call one library function and print."""
