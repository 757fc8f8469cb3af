"""Commands for machine identities: ``accounts`` (service accounts) and ``tokens`` (API tokens)."""
