"""Sign in with the browser of this machine, which brings the proof back to a port of this machine.

    this command -> browser: gateway/auth/cli?challenge&port&state -> person signs in
                 <- 127.0.0.1:port/callback?code&state <- gateway
    code + verifier -> gateway -> session, or the session that there is has proved more (`step_up`)

Called by `ways`. Only this process knows the verifier, so a code is of no use to anybody else on this machine; and a
return with another state was not begun here.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Generic, TypeVar
from urllib.parse import parse_qs, urlsplit

from ostiary.cli.signin.gateway import GatewayClient, sign_in_timeout
from ostiary.cli.signin.person.terminal import Person
from ostiary.cli.signin.sessions import SignInGrant
from ostiary.errors import LoginRefused, OstiaryError
from ostiary.model import Secret

# A browser may open a connection long before it sends anything.
CONNECTION_SECONDS = 30.0
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
# A door, in the colour of the pages of the gateway.
ICON = (
    "data:image/svg+xml,%3Csvg xmlns=%27http://www.w3.org/2000/svg%27 viewBox=%270 0 16 16%27%3E"
    "%3Cpath d=%27M3 15V6a5 5 0 0 1 10 0v9z%27 fill=%27%230b57a4%27/%3E%3C/svg%3E"
)
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · ostiary</title>
<link rel="icon" href="{icon}">
<style>
:root {{ --page: #f4f5f7; --card: #fff; --text: #1c2128; --line: #d0d7de; --accent: #0b57a4; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #14181d; --card: #1d232b; --text: #e6eaf0; --line: #39424d; --accent: #7ab8ff; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }}
header {{ display: flex; align-items: center; gap: .6rem; max-width: 60rem; margin: 0 auto; padding: 1rem 1.25rem;
  font-weight: 650; }}
header span {{ width: 1.05rem; height: 1.35rem; border: .2rem solid var(--accent); border-bottom-width: .35rem;
  border-radius: .6rem .6rem 0 0; }}
main {{ max-width: 26rem; margin: 1rem auto; padding: 1.5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .75rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }}
p {{ margin: 0; overflow-wrap: anywhere; }}
@media (max-width: 32rem) {{ main {{ margin: 0 .9rem; padding: 1.1rem; }} header {{ padding: 1rem .9rem; }} }}
</style>
</head>
<body>
<header><span aria-hidden="true"></span>ostiary</header>
<main>
<h1>{title}</h1>
<p>{text}</p>
</main>
</body>
</html>
"""

T = TypeVar("T")

_REFUSALS = {
    "access_denied": "sign-in was refused in the browser",
    "login-refused": "the identity provider refused this user",
    "provider-failed": "the identity provider is unavailable",
}


def sign_in(
    gateway: GatewayClient,
    person: Person,
    *,
    provider: str | None,
    client: str,
    seconds: float,
    show: Callable[[str], object] | None,
) -> SignInGrant:
    """*show* opens an address in a browser; None if the person is to do that."""
    return _visit(
        gateway,
        person,
        gateway.redeem,
        what="to sign you in",
        provider=provider,
        client=client,
        seconds=seconds,
        show=show,
    )


def step_up(
    gateway: GatewayClient,
    person: Person,
    *,
    ticket: Secret,
    client: str,
    seconds: float,
    show: Callable[[str], object] | None,
) -> None:
    """The same for a session that there is already, and that must prove more."""
    _visit(
        gateway,
        person,
        gateway.redeem_step_up,
        what="to confirm that it is you",
        provider=None,
        client=client,
        seconds=seconds,
        show=show,
        ticket=ticket.reveal(),
    )


def _visit(
    gateway: GatewayClient,
    person: Person,
    redeem: Callable[[str, Secret], T],
    *,
    what: str,
    provider: str | None,
    client: str,
    seconds: float,
    show: Callable[[str], object] | None,
    ticket: str = "",
) -> T:
    """What *redeem* gives for the code with which the browser comes back."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    returning = Return(lambda code: redeem(code, Secret(verifier)))
    try:
        address = gateway.browser_address(
            challenge=urlsafe_b64encode(digest).rstrip(b"=").decode(),
            port=returning.port,
            state=returning.state,
            client=client,
            provider=provider,
            step_up=ticket,
        )
        if show is None:
            person.tell(f"open this URL in a browser on this machine:\n  {address}")
        else:
            person.tell(f"your browser opens {what}; if it does not, open:\n  {address}")
            # Some wait until they are closed, and we must be there for the return before that.
            threading.Thread(target=show, args=(address,), daemon=True).start()
        return returning.wait(seconds)
    finally:
        returning.close()


@dataclass(frozen=True, slots=True)
class _Redeemed(Generic[T]):
    value: T


class Return(Generic[T]):
    """Listens on a free port of 127.0.0.1 until the browser comes back, once."""

    def __init__(self, redeem: Callable[[str], T]) -> None:
        self.state = secrets.token_urlsafe(24)
        self._redeem = redeem
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._outcome: _Redeemed[T] | Exception | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> T:
        if not self._over.wait(seconds):
            raise sign_in_timeout(f"the browser did not return within {seconds:.0f} seconds")
        if isinstance(self._outcome, _Redeemed):
            return self._outcome.value
        assert self._outcome is not None
        raise self._outcome

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle_return(self, query: dict[str, list[str]]) -> tuple[int, str, str] | None:
        """What to show to a browser that came with *query*: (status, title, text); None if it was not sent from here.

        A second one, or one with a wrong state, changes nothing.
        """
        # As bytes: what comes in need not be ASCII.
        if not hmac.compare_digest(_only(query, "state").encode(), self.state.encode()):
            return None
        with self._lock:
            if self._outcome is not None:
                return 400, "This sign-in link was already used", "You may close this tab."
            try:
                self._outcome = _Redeemed(self._redeem_code(query))
            except Exception as error:
                self._outcome = error
                reason = error.summary if isinstance(error, OstiaryError) else "it failed"
                return (
                    400,
                    "You are not signed in",
                    f"{escape(reason)}. See the terminal for details. You may close this tab.",
                )
        return 200, "You are signed in", "You may close this tab and return to the terminal."

    def _redeem_code(self, query: dict[str, list[str]]) -> T:
        code = _only(query, "code")
        if not code:
            error = _only(query, "error")
            raise LoginRefused(
                "the gateway refused the sign-in",
                cause=_REFUSALS.get(error, error or "the browser returned without a code"),
                code="sign-in-refused",
            )
        return self._redeem(code)

    def note_page_shown(self) -> None:
        """The browser has its page: now the listener may go."""
        if self._outcome is not None:
            self._over.set()


def _only(query: dict[str, list[str]], name: str) -> str:
    values = query.get(name, [])
    return values[0] if len(values) == 1 else ""


def _handler(returning: Return[T]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_SECONDS
        server_version, sys_version = "ostiary", ""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            # Another name that leads here is a page of somebody else which wants to look at our answer.
            ours = self.headers.get_all("Host") == [f"127.0.0.1:{returning.port}"]
            answer = returning.handle_return(parse_qs(parts.query)) if ours and parts.path == "/callback" else None
            try:
                self._show(*(answer or (404, "Page not found", "Start the sign-in in the terminal: ostiary login.")))
            except OSError:
                # It went away before it saw the page; we know what we need.
                self.close_connection = True
            finally:
                if answer is not None:
                    returning.note_page_shown()

        def _show(self, status: int, title: str, text: str) -> None:
            page = PAGE.format(title=title, text=text, icon=ICON).encode()
            self.send_response(status)
            for name, value in (
                ("Content-Type", "text/html; charset=utf-8"),
                ("Content-Length", str(len(page))),
                ("Content-Security-Policy", CONTENT_POLICY),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "no-referrer"),
                ("X-Content-Type-Options", "nosniff"),
                ("Connection", "close"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the address holds a code, and stderr may be a screen that somebody draws on."""

    return Handler
