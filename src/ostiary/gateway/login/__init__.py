"""``/auth``: how people and their programs sign in. `door` is where it begins."""
