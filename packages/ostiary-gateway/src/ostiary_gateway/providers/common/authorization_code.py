"""OAuth's authorization code flow with PKCE (RFC 6749, section 4.1; RFC 7636), for identity providers that use it.

    begin -> Redirect with state and code_challenge -> the user signs in there -> parse_return -> code and verifier

Meanwhile the gateway stores state and verifier, bound to the browser and valid for one return.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from ostiary.core.redaction import redact
from ostiary.core.text import printable
from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect

# Errors of the OAuth server (``error``, ``error_description``; RFC 6749, 4.1.2.1 and 5.2). They are untrusted, some
# even come through a browser. So they are truncated, stripped of control characters and redacted before they are
# quoted.

LONGEST_CODE = 64
LONGEST_DESCRIPTION = 200


def reported_error(code: str, description: str = "", *, sent: Iterable[str] = ()) -> str:
    """Return *code*, with *description* in quotes; empty without a code. *sent* are secrets to redact."""
    sent = tuple(sent)
    code, description = _plain(code, LONGEST_CODE, sent), _plain(description, LONGEST_DESCRIPTION, sent)
    return f'{code} ("{description}")' if code and description else code


def _plain(text: str, most: int, sent: tuple[str, ...]) -> str:
    # Truncated twice: the first cut may leave half a secret, which is not redacted. The second cut removes it.
    text = printable(redact(" ".join(text[: 10 * most].split()), secrets=sent)).replace('"', "'")
    return text if len(text) <= most else text[:most] + ("…" if most == LONGEST_DESCRIPTION else "")


STATE = "state"
VERIFIER = "verifier"
MAX_CODE = 4096
_AGAIN = "this sign-in did not start in this browser, or has expired: start again"


@dataclass(frozen=True, slots=True)
class Returned:
    """The code from the browser, and the verifier from the gateway's store."""

    code: Secret
    verifier: Secret


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Parameters of an authorization request, redirected or pushed, and what to `remember` until the return."""

    parameters: Mapping[str, str] = field(repr=False)
    remember: tuple[tuple[str, str], ...] = field(repr=False)
    state: str = field(repr=False)


def prepare(parameters: Mapping[str, str], request: LoginRequest) -> PreparedRequest:
    """Add the parameters that every such flow has to *parameters*."""
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    every_flow_has = {
        "redirect_uri": request.callback_url,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return PreparedRequest({**parameters, **every_flow_has}, ((STATE, state), (VERIFIER, verifier)), state)


def begin(authorize_url: str, parameters: Mapping[str, str], request: LoginRequest) -> Redirect:
    """Return the redirect to the login page. *parameters* are added to those that every such flow has."""
    prepared = prepare(parameters, request)
    return Redirect(f"{authorize_url}?{urlencode(prepared.parameters)}", remember=prepared.remember)


def returned_parameters(request: LoginRequest, *, by_post: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the parameters from the browser: of the query, or with *by_post* of the form and nothing else."""
    return request.form if by_post else request.query


def parse_return(request: LoginRequest, system: str, *, by_post: bool = False) -> Returned:
    """Return the code and the verifier. Raise `LoginRefused` unless the return belongs to a login of this browser.

    With *by_post* only a form is accepted: a query would not be the requested response mode.
    """
    remembered = dict(request.remembered)
    expected, verifier = remembered.get(STATE, ""), remembered.get(VERIFIER, "")
    method = "POST" if by_post else "GET"
    if request.method != method:
        raise LoginRefused(_AGAIN, cause=f"the return is not a {method}")
    parameters = returned_parameters(request, by_post=by_post)
    states = [value for name, value in parameters if name == "state"]
    if len(states) != 1 or not expected or not verifier:
        raise LoginRefused(_AGAIN, cause="there is no state, or nothing is remembered of this login")
    if not hmac.compare_digest(states[0].encode("utf-8", "surrogatepass"), expected.encode()):
        raise LoginRefused(_AGAIN, cause="the returned state does not match")
    _check_error(parameters, system)
    codes = [value for name, value in parameters if name == "code"]
    if len(codes) != 1 or not 0 < len(codes[0]) <= MAX_CODE:
        raise LoginRefused(f"{system} returned no code: start again", cause="there is not exactly one code")
    return Returned(Secret(codes[0]), Secret(verifier))


def _check_error(parameters: tuple[tuple[str, str], ...], system: str) -> None:
    errors = [value for name, value in parameters if name == "error"]
    if not errors:
        return
    description = next((value for name, value in parameters if name == "error_description"), "")
    if "access_denied" in errors and not description.strip():
        raise LoginRefused(
            f"{system} access was denied: you did not allow it to share your identity", cause="access_denied"
        )
    # The error comes from the browser that began this sign-in, so it does not prove that the identity provider is down.
    reported = reported_error(errors[0], description) or "an error"
    raise LoginRefused(
        f"{system} did not sign you in: {reported}",
        cause="it returned an error instead of a code",
        hint="check the application's settings",
    )
