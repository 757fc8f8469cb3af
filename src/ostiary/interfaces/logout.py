"""Signing out where more than the gateway is concerned: the identity system ends a sign-in, or is told that one ended.

Two abilities of identity providers: `TakesLogouts` for what the identity system starts (the back channel and the front
channel of OpenID Connect, single logout of SAML), `SignsOutElsewhere` for what a person starts on our own page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from ostiary.interfaces.identity import LoginRequest, PostedForm, Redirect
from ostiary.model import Secret


@dataclass(frozen=True, slots=True)
class Logout:
    """What the identity system says has ended, in the names of `Identified.session_id` and `Identified.subject`.

    With `session_id`, that one sign-in ends: every session that came from it, the command line's and those of web
    applications included; and of the same `subject`, sign-ins that came without a session id. With `subject` alone, all
    of that person's sign-ins at this provider end. With neither, nothing ends.

    `verified` tells that the identity system itself has said so: a signature was checked. Anybody can make the others
    up, so they end what is there, and refuse no sign-in that is under way.

    `token_id` names the message among all that the provider gets, and is remembered until `once_until`: a second one
    with it ends nothing, and is refused. From then on the provider itself must refuse it.

    `answer` is for whoever asked: nothing (a 200 without a body), or a browser goes on with it. With `is_return` a
    person's browser comes back from where `sign_out` sent it: it is shown that they are signed out.
    """

    session_id: str = ""
    subject: str = ""
    verified: bool = True
    token_id: str = ""
    once_until: datetime | None = None
    answer: Redirect | PostedForm | None = None
    is_return: bool = False


@runtime_checkable
class TakesLogouts(Protocol):
    """An identity provider whose identity system tells us when a sign-in has ended.

    The gateway calls `handle_logout` for every GET and POST at ``/auth/<name>/logout``; forms of other sites and of
    servers are let through to it. It sees no cookies: who is signed in here decides nothing, what the message says
    does. Raise `LoginRefused` if the message is not believed: it is answered with 400, and counted against the address
    that sent it. Any other exception counts as an outage, and the identity system may try again.

    What `handle_client` and `handle_provider` return must be an `Identified` with `subject`, and `session_id` where the
    identity system has one: without them nothing can be found again.
    """

    async def handle_logout(self, request: LoginRequest) -> Logout: ...


@dataclass(frozen=True, slots=True)
class SignOut:
    """A person has signed out on our page, and nothing of the session is left here.

    `hint` is what `Identified.sign_out_hint` was, or None. `return_url` is where the identity system may send the
    browser back to, ``/auth/<name>/logout``.
    """

    hint: Secret | None
    return_url: str


@runtime_checkable
class SignsOutElsewhere(Protocol):
    """An identity provider that can end the session at its identity system, too.

    The gateway calls `sign_out` after a person has signed out on its page, with what was kept for that. Return where
    the browser goes next, or None if there is nothing to do there. What it raises is logged, and the person is signed
    out here all the same. Nothing is remembered for the way back: `remember` of the answer must be empty.
    """

    async def sign_out(self, signed_out: SignOut) -> Redirect | PostedForm | None: ...
