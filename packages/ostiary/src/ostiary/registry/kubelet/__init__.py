"""The kubelet's side: provider configuration, running a provider, and our own provider program."""
