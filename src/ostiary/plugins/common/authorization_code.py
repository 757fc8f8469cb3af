"""The two requests of OAuth's authorization code flow, as a provider sees them (RFC 6749, section 4.1; RFC 7636).

    begin -> Redirect with state and code_challenge -> the person signs in there -> parse_return -> code and verifier

Called by the providers that send people to an OAuth server. The gateway keeps state and verifier meanwhile, bound to
the browser and good for one return.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import LoginRequest, Redirect
from ostiary.model import Secret

STATE = "state"
VERIFIER = "verifier"
MAX_CODE = 4096
_AGAIN = "this sign-in did not start in this browser, or has expired: start again"


@dataclass(frozen=True, slots=True)
class Returned:
    """What a browser brought back, and what only the server knew."""

    code: Secret
    verifier: Secret


def begin(authorize_url: str, parameters: Mapping[str, str], request: LoginRequest) -> Redirect:
    """The way to the identity system's page. *parameters* are added to those that every such flow has."""
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        **parameters,
        "redirect_uri": request.callback_url,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return Redirect(f"{authorize_url}?{urlencode(query)}", remember=((STATE, state), (VERIFIER, verifier)))


def parse_return(request: LoginRequest, system: str) -> Returned:
    """The code that came back; raises `LoginRefused` unless it belongs to a login of this browser."""
    remembered = dict(request.remembered)
    expected, verifier = remembered.get(STATE, ""), remembered.get(VERIFIER, "")
    if request.method != "GET":
        raise LoginRefused(_AGAIN, cause="the return is not a GET")
    states = [value for name, value in request.query if name == "state"]
    if len(states) != 1 or not expected or not verifier:
        raise LoginRefused(_AGAIN, cause="there is no state, or nothing is remembered of this login")
    if not hmac.compare_digest(states[0].encode("utf-8", "surrogatepass"), expected.encode()):
        raise LoginRefused(_AGAIN, cause="the returned state does not match")
    _check_error(request, system)
    codes = [value for name, value in request.query if name == "code"]
    if len(codes) != 1 or not 0 < len(codes[0]) <= MAX_CODE:
        raise LoginRefused(f"{system} returned no code: start again", cause="there is not exactly one code")
    return Returned(Secret(codes[0]), Secret(verifier))


def _check_error(request: LoginRequest, system: str) -> None:
    errors = [value for name, value in request.query if name == "error"]
    if "access_denied" in errors:
        raise LoginRefused(
            f"{system} access was denied: you did not allow it to share your identity", cause="access_denied"
        )
    if errors:
        # The text comes through the browser, and could be anybody's. It is no proof that the identity system is down.
        cause = "it returned an error instead of a code"
        raise LoginRefused(f"{system} did not sign you in", cause=cause, hint="check the application's settings")
