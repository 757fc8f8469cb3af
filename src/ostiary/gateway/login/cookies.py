"""The gateway's own cookies. They go to this host only, are out of reach of scripts, and never reach an upstream."""

from __future__ import annotations

from dataclasses import replace

from ostiary.gateway.http1.headers import OUR_COOKIES
from ostiary.interfaces.identity import LoginRequest

_OURS = tuple(prefix.decode() for prefix in OUR_COOKIES)


class Cookie:
    """One cookie. Without TLS, which is on this machine only, browsers would not keep the safer name."""

    def __init__(self, name: str, *, secure: bool) -> None:
        # A cookie with this prefix is only taken from, and sent to, this very host, over TLS.
        self.name = f"__Host-ostiary-{name}" if secure else f"ostiary-{name}"
        # Lax: a browser that comes back from an identity system must bring it along; a form of another site must not.
        self._attributes = f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"

    def of(self, request: LoginRequest) -> str:
        """Its value; empty if there is none, or more than one, and so nobody knows whose."""
        found = [value for name, value in _cookies(request) if name == self.name]
        return found[0] if len(found) == 1 else ""

    def set(self, value: str, *, seconds: float) -> tuple[str, str]:
        return "Set-Cookie", f"{self.name}={value}; Max-Age={seconds:.0f}; {self._attributes}"

    def forget(self) -> tuple[str, str]:
        return "Set-Cookie", f"{self.name}=; Max-Age=0; {self._attributes}"


def without_ours(request: LoginRequest) -> LoginRequest:
    """*request* as a provider may see it: with everybody's cookies but ours."""
    headers = []
    for name, value in request.headers:
        if name == "cookie":
            kept = [part.strip() for part in value.split(";") if not part.strip().startswith(_OURS)]
            if any(kept):
                headers.append((name, "; ".join(filter(None, kept))))
        else:
            headers.append((name, value))
    return replace(request, headers=tuple(headers))


def _cookies(request: LoginRequest) -> list[tuple[str, str]]:
    # Not the standard library's reader, which drops all cookies if one of them is odd.
    parts = [part for name, value in request.headers if name == "cookie" for part in value.split(";")]
    split = [part.strip().partition("=") for part in parts]
    return [(name, value) for name, _, value in split]
