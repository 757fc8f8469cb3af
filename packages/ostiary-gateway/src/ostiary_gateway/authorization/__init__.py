"""User and question to decision: the chain of authorization providers and its caches."""
