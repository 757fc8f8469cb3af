"""``ostiary kubeconfig``: a kubectl context for a gateway."""
