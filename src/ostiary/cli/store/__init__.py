"""``ostiary store``: the token store of a gateway, checked, moved to another one, made safe after a restore."""
