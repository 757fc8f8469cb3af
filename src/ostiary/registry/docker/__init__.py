"""docker's files and helpers, and our own credential helper."""
