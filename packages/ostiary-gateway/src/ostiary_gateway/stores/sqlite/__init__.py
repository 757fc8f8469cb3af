"""Tokens in a SQLite file."""
