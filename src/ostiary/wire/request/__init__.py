"""What a request to a Kubernetes API asks for, from its path and query."""
