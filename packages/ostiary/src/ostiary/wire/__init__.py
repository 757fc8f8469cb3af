"""Conversion between Kubernetes JSON and the model: one module per API group, pure functions."""
