"""The gateway's own cookies.

They are sent to this host only, unreadable for scripts, and not forwarded to upstreams.
"""

from __future__ import annotations

from dataclasses import replace

from ostiary_gateway.http1.headers import OUR_COOKIES
from ostiary_gateway.interfaces.identity import LoginRequest

_OURS = tuple(prefix.decode() for prefix in OUR_COOKIES)


class Cookie:
    """One cookie. Without TLS, which is allowed on loopback only, browsers reject the ``__Host-`` prefix."""

    def __init__(self, name: str, *, secure: bool) -> None:
        # Browsers accept a cookie with this prefix only from this host over TLS, and send it nowhere else.
        self.name = f"__Host-ostiary-{name}" if secure else f"ostiary-{name}"
        # Lax: a browser that returns from an IdP must send it; a form of another site must not.
        self._attributes = f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"

    def of(self, request: LoginRequest) -> str:
        """Return its value; empty if it is absent or ambiguous, because another site may have set one of several."""
        values = [value for name, value in _cookies(request) if name == self.name]
        return values[0] if len(values) == 1 else ""

    def occurrences(self, request: LoginRequest) -> int:
        """Count its occurrences. More than one means that another site set one, perhaps for a whole domain."""
        return sum(name == self.name for name, _ in _cookies(request))

    def set(self, value: str, *, seconds: float) -> tuple[str, str]:
        return "Set-Cookie", f"{self.name}={value}; Max-Age={seconds:.0f}; {self._attributes}"

    def forget(self) -> tuple[str, str]:
        return "Set-Cookie", f"{self.name}=; Max-Age=0; {self._attributes}"


def without_ours(request: LoginRequest) -> LoginRequest:
    """Return *request* as a provider may see it: without our cookies."""
    headers = []
    for name, value in request.headers:
        if name == "cookie":
            cookies = [part.strip() for part in value.split(";") if not part.strip().startswith(_OURS)]
            if any(cookies):
                headers.append((name, "; ".join(filter(None, cookies))))
        else:
            headers.append((name, value))
    return replace(request, headers=tuple(headers))


def without_cookies(request: LoginRequest) -> LoginRequest:
    return replace(request, headers=tuple(header for header in request.headers if header[0] != "cookie"))


def _cookies(request: LoginRequest) -> list[tuple[str, str]]:
    # Not http.cookies: it drops all cookies if one of them is malformed.
    parts = [part for name, value in request.headers if name == "cookie" for part in value.split(";")]
    split = [part.strip().partition("=") for part in parts]
    return [(name, value) for name, _, value in split]
