"""What the interop tests stand on: the programs of Kubernetes, a cluster made of them, and a gateway before it."""
