"""API plugins: processes that serve an API group of their own beside a Kubernetes upstream."""
