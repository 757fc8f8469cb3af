"""``ostiary-gateway door``: the configuration of a proxy that asks the gateway; a module for each kind of proxy."""
