"""The command line. Each verb parses its options, calls one function of the library and prints the result."""
