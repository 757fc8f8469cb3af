"""One user, for a gateway on one's own machine."""
