"""Upstreams: where allowed requests go, their health, and our own credential there."""
