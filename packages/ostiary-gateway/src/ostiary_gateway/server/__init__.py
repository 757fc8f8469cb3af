"""A process of the gateway: start, reload, drain, health."""
