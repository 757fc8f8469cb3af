"""Exec plugins: run one, decide whether it may run, and check that it keeps the protocol."""
