"""The attribute mapper for requests to a Kubernetes API."""
