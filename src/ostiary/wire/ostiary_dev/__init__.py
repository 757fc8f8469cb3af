"""``ostiary.dev/v1``, the gateway's own API group: JSON to model and back. Pure."""
