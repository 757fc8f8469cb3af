"""Authentication: find the user of a token or cookie, cache tokens, and apply revocations."""
