"""Identity providers: who is at the door?"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import UserInfo


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A request to ``/auth`` or ``/auth/provider``, as far as a provider may see it.

    `headers` have lower-case names and keep their order; `query` and `form` are decoded pairs. `callback_url` is
    where the identity system must send the browser back to. `peer_certificate` (DER) was verified by the listener.
    `remembered` is what the provider's own `Redirect` asked to remember; it is empty on the first request, and on the
    return of a browser that did not begin this login, or began it with another provider, or too long ago.
    `request_id` is the id that log, audit record and error page share; a provider may put it into its own log.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    form: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    callback_url: str = ""
    remote_address: str = ""
    peer_certificate: bytes | None = field(default=None, repr=False)
    remembered: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    request_id: str = ""

    def header(self, name: str) -> str | None:
        """The only header of this name; None where it is absent, or stands twice and so proves nothing."""
        found = [value for key, value in self.headers if key == name]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the browser to *url*, where the identity system asks the person.

    The gateway keeps `remember` on the server until the browser returns (a PKCE verifier, a nonce), for one return and
    ten minutes at most; so a provider needs no memory of its own, and any worker can finish a login. A ``state``
    parameter in the URL must come back unchanged, or the provider is told of no memory.
    """

    url: str
    remember: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client for proof: `www_authenticate` goes into a 401 of ``/auth``, and nowhere else."""

    www_authenticate: str


class IdentityProvider(Protocol):
    """Says who is at the door.

    The gateway calls `handle_client` on every visit to ``/auth`` (or ``/auth/<name>``). Return a `UserInfo` if the
    request itself is proof (a password, a cookie, a client certificate), a `Redirect` to a login page elsewhere, or
    a `Challenge` if the client can prove itself by asking again. After a redirect the browser comes back to
    ``/auth/provider`` and `handle_provider` finishes; a provider that never redirects raises `LoginRefused` there.

    One instance serves all requests at once. Raise `ostiary.errors.LoginRefused` when the answer is no. Any other
    exception counts as an outage. In both cases no token is issued. Groups in the `UserInfo` are ignored unless a
    group provider reads them: the gateway owns tokens, their lifetime, and what they attest.
    """

    async def handle_client(self, request: LoginRequest) -> UserInfo | Redirect | Challenge: ...

    async def handle_provider(self, request: LoginRequest) -> UserInfo: ...


class SignIn(Enum):
    """How people sign in with a provider."""

    REDIRECT = "redirect"  # in a browser, on the identity system's own pages
    PASSWORD = "password"  # noqa: S105  # with a name and a password, sent as ``Authorization: Basic``
    AMBIENT = "ambient"  # by what comes with the request anyway: a certificate, a header, a cookie


class TellsSignIn(Protocol):
    """An identity provider that says beforehand how people sign in, so that a program knows what to offer.

    One that does not say is taken for a `SignIn.REDIRECT`, since a browser can do all three.
    """

    sign_in: SignIn


@dataclass(frozen=True, slots=True)
class Produces:
    """What the users of an identity provider can look like, before any prefix.

    `usernames` are all of them, or None where they cannot be listed. `uid` tells whether users have one, `extra` which
    keys of extra fields they can have.
    """

    usernames: frozenset[str] | None = None
    uid: bool = True
    extra: tuple[str, ...] = ()


@runtime_checkable
class TellsWhatItProduces(Protocol):
    """An identity provider that can say beforehand whom it can sign in.

    Then a line of policy that can match nobody is told, and the role that a cluster gives to the gateway names the
    users. Of one that cannot say, every name is possible. It may raise where its source cannot be read.
    """

    def produces(self) -> Produces: ...


class Revalidates(Protocol):
    """An identity provider that can say, without the person, whether a user is still one.

    Called when a session is renewed. Raise `LoginRefused` when the user is no longer known; the session ends.
    """

    async def revalidate(self, user: UserInfo) -> UserInfo: ...
