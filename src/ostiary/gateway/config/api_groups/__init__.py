"""API groups that others than the upstreams serve: how they may be called, and what they must keep to."""
