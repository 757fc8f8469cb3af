"""Users and password hashes in a file."""
