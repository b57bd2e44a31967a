"""The loop, what it is fed, what it minimises, and the folder it writes. It does not know how results are evaluated."""
