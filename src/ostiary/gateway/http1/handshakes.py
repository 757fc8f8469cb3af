"""TLS as both kinds of connections speak it: handshakes are counted, and what follows them takes a shorter way.

The event loop calls `do_handshake` until it is through, and after that `read`, `write` and `pending` for every request.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

FULL, RESUMED, FAILED = "full", "resumed", "failed"


# Told how a handshake ended: full, resumed or failed.
OnHandshake = Callable[[str], None]


def count_nothing(result: str) -> None:
    """For connections that nobody counts."""


class CountingContext(ssl.SSLContext):
    """A context whose connections tell `on_handshake` how their handshakes ended."""

    on_handshake: OnHandshake = staticmethod(count_nothing)


class CountedHandshake(ssl.SSLObject):
    """The TLS of one connection."""

    def do_handshake(self) -> None:
        context = self.context
        assert isinstance(context, CountingContext)
        try:
            super().do_handshake()
            if self.session_reused:
                self.check_resumed()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            context.on_handshake(FAILED)
            raise
        context.on_handshake(RESUMED if self.session_reused else FULL)

    def check_resumed(self) -> None:
        """Raise `ssl.SSLError` if the session must not be resumed."""


def use_directly(tls: ssl.SSLObject) -> None:
    """Let the event loop call the C functions of *tls*, without the Python functions of `ssl` around them.

    It looks them up at the object once, and calls them for every request.
    """
    inner = getattr(tls, "_sslobj", None)
    for name in ("read", "write", "pending"):
        function = getattr(inner, name, None)
        if function is not None:
            setattr(tls, name, function)
