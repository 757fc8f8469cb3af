"""Discovery and OpenAPI documents of Kubernetes APIs: read with suspicion, and merged. Pure."""
