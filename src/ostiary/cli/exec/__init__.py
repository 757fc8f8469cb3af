"""``ostiary exec``: the exec plugins of a kubeconfig, run, explained and checked."""
