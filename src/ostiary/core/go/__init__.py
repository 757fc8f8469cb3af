"""Values as Go reads and writes them, which is how Kubernetes does."""
