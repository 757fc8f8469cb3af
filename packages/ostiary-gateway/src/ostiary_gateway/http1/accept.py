"""Code shared by connections and pages: detection of browsers by ``Accept``, and TLS handshakes that are counted."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable

_QUALITY = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*")


def prefers_html(accept: str) -> bool:
    """Whether the client prefers HTML. Only browsers accept ``text/html`` and prefer it."""
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


# TLS for both kinds of connections.

FULL, RESUMED, FAILED = "full", "resumed", "failed"


# Called with the result of a handshake: full, resumed or failed.
OnHandshake = Callable[[str], None]


def count_nothing(result: str) -> None:
    """Default of `on_handshake`: do nothing."""


class CountingContext(ssl.SSLContext):
    """A TLS context whose connections report the result of their handshakes to `on_handshake`."""

    on_handshake: OnHandshake = staticmethod(count_nothing)


class CountedHandshake(ssl.SSLObject):
    """The TLS of one connection. The event loop calls `do_handshake` until it succeeds."""

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
    """Let the event loop call the C functions of *tls* directly, without the Python wrappers of `ssl`.

    The event loop looks them up once per object, and calls them for every request.
    """
    inner = getattr(tls, "_sslobj", None)
    for name in ("read", "write", "pending"):
        function = getattr(inner, name, None)
        if function is not None:
            setattr(tls, name, function)
