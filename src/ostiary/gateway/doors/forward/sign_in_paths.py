"""The paths at the host of a web application that the proxy sends to the gateway itself, and never asks about. Pure.

    /auth/application     a browser comes back from sign-in, with a code (`login.applications.visits`)
    /auth/logout          a person signs out

``ostiary door`` prints a route for each of them. Everything else below ``/auth`` is the application's own there.
"""

from __future__ import annotations

SIGN_IN_PATHS = ("/auth/application", "/auth/logout")
_TARGETS = frozenset(path.encode() for path in SIGN_IN_PATHS)


def is_sign_in_path(target: bytes) -> bool:
    return target.partition(b"?")[0] in _TARGETS
