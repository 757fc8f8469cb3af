"""Everything is allowed to everybody, for a first try."""
