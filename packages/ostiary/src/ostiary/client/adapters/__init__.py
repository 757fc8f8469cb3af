"""Adapters: one module per HTTP or Kubernetes client library, which adds the credential to its requests."""
