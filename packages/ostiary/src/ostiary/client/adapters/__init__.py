"""One module for each HTTP or Kubernetes client that is given signed requests."""
