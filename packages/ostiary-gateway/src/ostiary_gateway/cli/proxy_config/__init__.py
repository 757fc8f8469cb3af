"""``ostiary-gateway door``: configurations of proxies that use external authorization, one module per kind of proxy."""
