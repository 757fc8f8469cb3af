"""The exit codes of all commands, as documented in ``ostiary --help``."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
