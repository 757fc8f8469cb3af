"""The name of the user who runs a command, as this machine knows it. Used by ``can-i`` and ``sessions revoke``."""

from __future__ import annotations


def login_name() -> str:
    """Who runs this command."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container the user often has a number and no name.
        return f"uid {os.getuid()}"
