"""The processes of the gateway: start, reload, drain, health."""
