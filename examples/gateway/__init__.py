"""A gateway in front of a small API: allowed and denied requests, a revoked watch: ``python -m examples.gateway``."""
