"""``ostiary connect``: a proxy on loopback that holds the credential of a kubeconfig's user, and a context for it."""
