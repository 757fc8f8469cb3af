"""Authorization: the chain of providers and its caches, token scopes, step-up rules, impersonation."""
