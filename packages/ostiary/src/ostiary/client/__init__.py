"""The client: turn a kubeconfig into a credential, and sign HTTP requests with it."""
