"""The exit codes of every command, as ``ostiary --help`` promises them. Used by the dispatcher and the commands."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
