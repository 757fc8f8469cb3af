"""``ostiary doctor``: sends hostile requests through a proxy to an echo behind it, and says which of them pass."""
