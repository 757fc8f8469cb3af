"""``ostiary connect``: a loopback proxy that holds the credential of a kubeconfig's user, and contexts for it."""
