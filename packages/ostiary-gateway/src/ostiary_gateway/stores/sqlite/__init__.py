"""Token store in a SQLite file."""
