"""Kubernetes JSON <-> model: one module per API group, pure functions."""
