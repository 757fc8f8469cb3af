"""The ``auth-provider`` of a kubeconfig's user."""
