"""``/auth``: how people and their programs sign in. `routes` says which request is for whom."""
