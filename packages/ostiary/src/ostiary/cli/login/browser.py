"""Sign in with the browser of this machine, which returns the code to a port on loopback.

    this command -> browser: gateway/auth/cli?challenge&port&state -> user signs in
                 <- 127.0.0.1:port/callback?code&state <- gateway
    code + verifier -> gateway -> session, or a step-up of the current session (`step_up`)
    browser -> gateway/auth/cli/ended, which shows the outcome; or a built-in page if the gateway cannot

Only this process knows the verifier, so the code is useless to other processes on this machine. A callback with another
state did not start here.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import secrets
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Generic, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from ostiary.cli.login.gateway import GatewayClient, sign_in_timeout
from ostiary.cli.login.sessions import SignInGrant
from ostiary.cli.login.terminal import Person
from ostiary.core.languages import preferred
from ostiary.core.text import printable
from ostiary.errors import LoginRefused
from ostiary.model import Secret


class EndedPage(Enum):
    """The page on loopback that ends a browser sign-in when the gateway cannot show one.

    It resembles the gateway's pages, but without the operator's branding, which only the gateway knows.
    """

    SIGNED_IN = "signed in"
    FAILED = "failed"
    NOT_CONFIRMED = "not confirmed"
    USED = "used"
    UNKNOWN = "unknown"

    @property
    def status(self) -> int:
        return {EndedPage.SIGNED_IN: 200, EndedPage.UNKNOWN: 404}.get(self, 400)


# By language and page: the heading, and the text as HTML.
_TEXTS = {
    "en": {
        EndedPage.SIGNED_IN: (
            "You are signed in on the command line",
            "Go back to the terminal. You can close this page.",
        ),
        EndedPage.FAILED: (
            "You are not signed in",
            "The sign-in failed. The terminal says more. You can close this page.",
        ),
        EndedPage.NOT_CONFIRMED: (
            "The sign-in was not confirmed",
            "You are still signed in. The terminal says more. You can close this page.",
        ),
        EndedPage.USED: ("This sign-in link was already used", "You can close this page."),
        EndedPage.UNKNOWN: ("Page not found", "Start the sign-in in the terminal: <code>ostiary login</code>"),
    },
    "de": {
        EndedPage.SIGNED_IN: (
            "Sie sind auf der Kommandozeile angemeldet",
            "Gehen Sie zurück zum Terminal. Sie können diese Seite schließen.",
        ),
        EndedPage.FAILED: (
            "Sie sind nicht angemeldet",
            "Die Anmeldung ist fehlgeschlagen. Mehr dazu steht im Terminal. Sie können diese Seite schließen.",
        ),
        EndedPage.NOT_CONFIRMED: (
            "Die Anmeldung wurde nicht bestätigt",
            "Sie sind weiterhin angemeldet. Mehr dazu steht im Terminal. Sie können diese Seite schließen.",
        ),
        EndedPage.USED: ("Dieser Anmeldelink wurde schon verwendet", "Sie können diese Seite schließen."),
        EndedPage.UNKNOWN: (
            "Seite nicht gefunden",
            "Beginnen Sie die Anmeldung im Terminal: <code>ostiary login</code>",
        ),
    },
}
_PAGE = """\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>{title} - ostiary</title>
<link rel="icon" href="data:,">
<style nonce="{nonce}">
:root {{ --page: #f4f5f7; --card: #fff; --text: #1c2128; --line: #d0d7de; --code: #f0f2f5; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #14181d; --card: #1d232b; --text: #e6eaf0; --line: #39424d; --code: #14181d; }}
}}
* {{ box-sizing: border-box; }}
body {{
  margin: 0; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif;
}}
main {{
  max-width: 26rem; margin: 3rem auto; padding: 1.5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .75rem;
}}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }}
p {{ margin: 0; }}
code {{ background: var(--code); padding: .1rem .3rem; border-radius: .25rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{text}</p>
</main>
</body>
</html>
"""


def render(page: EndedPage, *, accept_language: str) -> tuple[str, bytes]:
    """Return the page's Content-Security-Policy, and the page."""
    nonce = secrets.token_urlsafe(16)
    language = preferred(accept_language, tuple(_TEXTS))
    title, text = _TEXTS[language][page]
    whole = _PAGE.format(language=language, title=html.escape(title), text=text, nonce=nonce)
    policy = f"default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    return policy, whole.encode()


# A browser may open a connection long before it sends anything.
CONNECTION_SECONDS = 30.0

LONGEST_CAUSE = 500

T = TypeVar("T")

_REFUSALS = {
    "access_denied": "sign-in was refused in the browser",
    "login-refused": "the identity provider refused this user",
    "provider-failed": "the identity provider is unavailable",
}
# These codes mean that the sign-in was denied; all others, that a dependency failed.
_REFUSED = ("access_denied", "login-refused")


@dataclass(frozen=True, slots=True)
class Purpose:
    """Why the browser is opened: texts for the terminal, and the built-in page for a failure."""

    what: str
    refused: str
    failed: str
    page: EndedPage


SIGN_IN = Purpose("to sign you in", "the gateway refused the sign-in", "the sign-in failed", EndedPage.FAILED)
STEP_UP = Purpose("to confirm that it is you", "the step-up failed", "the step-up failed", EndedPage.NOT_CONFIRMED)


def sign_in(
    gateway: GatewayClient,
    person: Person,
    *,
    provider: str | None,
    client: str,
    seconds: float,
    show: Callable[[str], object] | None,
) -> SignInGrant:
    """Sign in. *show* opens a URL in a browser; None if the user is to do that."""
    return _visit(
        gateway,
        person,
        gateway.redeem,
        SIGN_IN,
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
    """Like `sign_in`, but step up an existing session."""
    _visit(
        gateway,
        person,
        gateway.redeem_step_up,
        STEP_UP,
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
    purpose: Purpose,
    *,
    provider: str | None,
    client: str,
    seconds: float,
    show: Callable[[str], object] | None,
    ticket: str = "",
) -> T:
    """Open the browser and return the result of *redeem* for the code that it brings back."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    returning = Return(lambda code: redeem(code, Secret(verifier)), gateway.server, purpose)
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
            person.tell(f"your browser opens {purpose.what}; if it does not, open:\n  {address}")
            # Some browser commands block until the browser is closed, but the callback arrives before that.
            threading.Thread(target=show, args=(address,), daemon=True).start()
        return returning.wait(seconds)
    finally:
        returning.close()


@dataclass(frozen=True, slots=True)
class _RedeemedCode(Generic[T]):
    value: T


class Return(Generic[T]):
    """Listens on a free port of 127.0.0.1 for one callback of the browser, then redirects it to a page of *server*."""

    def __init__(self, redeem: Callable[[str], T], server: str, purpose: Purpose = SIGN_IN) -> None:
        self._purpose = purpose
        self.state = secrets.token_urlsafe(24)
        self._redeem = redeem
        self._ended = f"{server.rstrip('/')}/auth/cli/ended"
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._outcome: _RedeemedCode[T] | Exception | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> T:
        if not self._over.wait(seconds):
            raise sign_in_timeout(f"the browser did not return within {seconds:.0f} seconds")
        if isinstance(self._outcome, _RedeemedCode):
            return self._outcome.value
        assert self._outcome is not None
        raise self._outcome

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle_return(self, query: dict[str, list[str]]) -> EndedPage | str | None:
        """Return the page or the redirect for a callback with *query*. None if it did not start here.

        A second callback, or one with a wrong state, changes nothing.
        """
        # Compare as bytes: the input may not be ASCII.
        if not hmac.compare_digest(_only(query, "state").encode(), self.state.encode()):
            return None
        # An older gateway has no page for the end.
        has_page = _only(query, "page") == "1"
        with self._lock:
            if self._outcome is not None:
                return EndedPage.USED
            try:
                self._outcome = _RedeemedCode(self._redeem_code(query))
            except Exception as error:
                self._outcome = error
                code = _only(query, "error")
                if not has_page or not code:
                    # The gateway itself may have failed, unless it has just denied the sign-in.
                    return self._purpose.page
                failure = _only(query, "failure")
                return f"{self._ended}?{urlencode({'error': code, **({'failure': failure} if failure else {})})}"
        return self._ended if has_page else EndedPage.SIGNED_IN

    def _redeem_code(self, query: dict[str, list[str]]) -> T:
        code = _only(query, "code")
        if not code:
            error, request_id = _only(query, "error"), printable(_only(query, "request_id"))
            # An older gateway sends only the code.
            cause = _only(query, "error_description") or _REFUSALS.get(error, error)
            raise LoginRefused(
                self._purpose.refused if error in _REFUSED else self._purpose.failed,
                cause=printable(cause)[:LONGEST_CAUSE] or "the browser returned without a code",
                hint=f"the administrator finds more under the request id {request_id[:64]}" if request_id else None,
                code="sign-in-refused",
            )
        return self._redeem(code)

    def note_page_shown(self) -> None:
        """Called when the browser has its page: the listener may stop now."""
        if self._outcome is not None:
            self._over.set()


def _only(query: dict[str, list[str]], name: str) -> str:
    values = query.get(name, [])
    return values[0] if len(values) == 1 else ""


def _handler(returning: Return[T]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serve the redirect that ends the sign-in."""

        timeout = CONNECTION_SECONDS
        server_version, sys_version = "ostiary", ""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            # DNS rebinding: a foreign host name that resolves to 127.0.0.1 may belong to a page that wants to read the
            # response.
            ours = self.headers.get_all("Host") == [f"127.0.0.1:{returning.port}"]
            answer = returning.handle_return(parse_qs(parts.query)) if ours and parts.path == "/callback" else None
            try:
                if isinstance(answer, str):
                    self._answer(303, [("Location", answer)])
                else:
                    self._show(answer or EndedPage.UNKNOWN)
            except OSError:
                # The browser disconnected before it saw the page. The callback has already been handled.
                self.close_connection = True
            finally:
                if answer is not None:
                    returning.note_page_shown()

        def _show(self, page: EndedPage) -> None:
            policy, body = render(page, accept_language=self.headers.get("Accept-Language", ""))
            headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", policy)]
            self._answer(page.status, headers, body)

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in (
                *headers,
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "no-referrer"),
                ("X-Content-Type-Options", "nosniff"),
                ("Connection", "close"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the URL contains a code, and stderr may be used by a full-screen application."""

    return Handler
