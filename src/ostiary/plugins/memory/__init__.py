"""Tokens in the memory of one process."""
