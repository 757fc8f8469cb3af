"""Commands about identities of programs: ``accounts`` (service accounts) and ``tokens`` (API tokens)."""
