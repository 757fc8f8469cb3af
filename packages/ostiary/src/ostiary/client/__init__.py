"""Door 1: a kubeconfig becomes a credential, a credential signs an HTTP request."""
