"""Whether a request comes from a browser, by its ``Accept`` header. Pure.

Called wherever an answer is a page for a person or a ``Status`` for a program.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable

_QUALITY = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*")


def prefers_html(accept: str) -> bool:
    """Only browsers name ``text/html``, and prefer it."""
    qualities = dict(_parse_accept(accept))
    html = qualities.get("text/html", 0.0)
    return html > 0 and html >= qualities.get("application/json", 0.0)


def _parse_accept(header: str) -> list[tuple[str, float]]:
    kinds = []
    for part in header.split(","):
        kind, *parameters = part.split(";")
        qualities = [match[1] for match in map(_QUALITY.fullmatch, parameters) if match]
        kinds.append((kind.strip().lower(), float(qualities[0]) if qualities else 1.0))
    return kinds


# TLS as both kinds of connections speak it: handshakes are counted, and what follows them takes a shorter way.
#
# The event loop calls `do_handshake` until it is through, and after that `read`, `write` and `pending` for every
# request.

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
