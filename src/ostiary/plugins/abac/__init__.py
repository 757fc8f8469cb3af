"""Kubernetes' attribute-based policy files."""
