"""A server that takes audit events, as the webhook of kube-apiserver does."""
