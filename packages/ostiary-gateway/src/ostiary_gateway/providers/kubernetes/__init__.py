"""Attributes of requests to a Kubernetes API."""
