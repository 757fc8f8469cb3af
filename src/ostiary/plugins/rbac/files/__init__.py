"""The policy in files: finds them, parses what has changed in them, and notices when they change."""
