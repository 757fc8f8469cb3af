"""Identity providers: who is at the door?"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import Secret, UserInfo


@dataclass(frozen=True, slots=True)
class RequiredAuthentication:
    """How a person must have signed in, as the identity system says it: with one of the levels `acr_values`, by one of
    the methods `amr_values`, and no longer ago than `max_age`. What is empty or None is not required."""

    acr_values: tuple[str, ...] = ()
    max_age: timedelta | None = None
    amr_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A request to ``/auth`` or ``/auth/<name>/provider``, as far as a provider may see it.

    `headers` have lower-case names and keep their order; `query` and `form` are decoded pairs, and `raw_query` is the
    query as it came, for what is signed byte for byte. `callback_url` is where the identity system must send the
    browser back to. `peer_certificate` (DER) was verified by the listener; `server_certificate` (DER) is what our
    listener showed on this connection, and None without TLS, as behind a proxy that ends it. `remembered` is what the
    provider's own `Redirect` asked to remember; it is empty on the first request, and on the return of a browser that
    did not begin this login, or began it with another provider, or too long ago.
    `request_id` is the id that log, audit record and error page share; a provider may put it into its own log.
    `required` is set where the person is signed in already and must prove more (a step-up): see `StepsUp`.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    form: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    callback_url: str = ""
    remote_address: str = ""
    peer_certificate: bytes | None = field(default=None, repr=False)
    server_certificate: bytes | None = field(default=None, repr=False)
    remembered: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    request_id: str = ""
    required: RequiredAuthentication | None = None
    raw_query: str = field(default="", repr=False)

    def header(self, name: str) -> str | None:
        """The only header of this name; None where it is absent, or stands twice and so proves nothing."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the browser to *url*, where the identity system asks the person.

    The gateway keeps `remember` on the server until the browser returns (a PKCE verifier, a nonce), for one return and
    ten minutes at most; so a provider needs no memory of its own, and any worker can finish a login. The parameter
    `state_name` of the URL must come back unchanged under the same name; otherwise `LoginRequest.remembered` is empty.
    In SAML it is called ``RelayState``. Where the URL has no such parameter because the identity system was given it
    beforehand (a pushed request), `state` is its value.
    """

    url: str
    remember: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    state_name: str = "state"
    state: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PostedForm:
    """The same with a page of ours, whose form the browser sends to *url* by itself: the POST binding of SAML.

    Nothing in `fields` is secret. What must come back unchanged is the field `state_name`.
    """

    url: str
    fields: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    remember: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    state_name: str = "state"


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client for proof: `www_authenticate` goes into a 401 of ``/auth``, and nowhere else.

    `advice` is what a person reads whose browser has no such proof.
    """

    www_authenticate: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Identified:
    """A user, what the provider wants to have again when the session is renewed, and how the sign-in may end.

    The gateway seals `kept` (a refresh token, say) with a secret that only the client has, so a reader of its store
    cannot use it. It belongs to one session: other sessions of the same sign-in have none.

    `session_id` and `subject` are the identity system's own names for this sign-in and for the person: ``sid`` and
    ``sub`` of OpenID Connect, NameID with SessionIndex, and NameID alone, of SAML. No two sign-ins of a provider may
    have the same `session_id`: they would end together. By them it may end the sign-in later, see
    `ostiary_gateway.interfaces.identity`; the gateway keeps digests of them. Empty where it has none. `sign_out_hint`
    is what `SignsOutElsewhere.sign_out` needs (an ID token, a NameID with its qualifiers). It is sealed as `kept` is,
    for the browser's session alone; one of more than 8 KiB is left out.

    With `once_until`, what proved who it is (an assertion of SAML, a ticket of Kerberos) is good for one sign-in:
    `token_id` names it among all of the provider, the gateway remembers it until then, and refuses a second use, in
    whichever replica. From then on the provider itself must refuse it.

    With `session_until`, the identity system says when the sign-in ends there (SessionNotOnOrAfter of SAML): nothing
    that begins with it here lasts longer.

    `www_authenticate` goes with the answer to the client: by it the gateway proves to the client who it is (mutual
    authentication).
    """

    user: UserInfo
    kept: Secret | None = field(default=None, repr=False)
    session_id: str = field(default="", repr=False)
    subject: str = ""
    sign_out_hint: Secret | None = field(default=None, repr=False)
    token_id: str = ""
    once_until: datetime | None = None
    session_until: datetime | None = None
    www_authenticate: str = field(default="", repr=False)


class IdentityProvider(Protocol):
    """Says who is at the door.

    The gateway calls `handle_client` on every visit to ``/auth`` (or ``/auth/<name>``). Return a `UserInfo` if the
    request itself is proof (a password, a cookie, a client certificate), a `Redirect` or a `PostedForm` to a login page
    elsewhere, or a `Challenge` if the client can prove itself by asking again. After a redirect the browser comes back
    to ``/auth/<name>/provider`` and `handle_provider` finishes; a provider that never redirects raises `LoginRefused`
    there.

    One instance serves all requests at once. Raise `ostiary.errors.LoginRefused` when the answer is no. Any other
    exception counts as an outage. In both cases no token is issued. Groups in the `UserInfo` are ignored unless a
    group provider reads them: the gateway owns tokens, their lifetime, and what they attest.
    """

    async def handle_client(
        self, request: LoginRequest
    ) -> UserInfo | Identified | Redirect | PostedForm | Challenge: ...

    async def handle_provider(self, request: LoginRequest) -> UserInfo | Identified: ...


class SignIn(Enum):
    """How people sign in with a provider."""

    REDIRECT = "redirect"  # in a browser, on the identity system's own pages
    PASSWORD = "password"  # noqa: S105  # with a name and a password, sent as ``Authorization: Basic``
    NEGOTIATE = "negotiate"  # by a Kerberos ticket, sent as ``Authorization: Negotiate``
    AMBIENT = "ambient"  # by what comes with the request anyway: a certificate, a header, a cookie
    PROGRAM = "program"  # by a token that only programs have; it is not offered to people


@runtime_checkable
class TellsSignIn(Protocol):
    """An identity provider that says beforehand how people sign in, so that a program knows what to offer.

    For a provider without it, `SignIn.REDIRECT` is assumed, since a browser can do all of them.
    """

    sign_in: SignIn


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """Who has presented a token that another system issued, for us.

    Nothing that we issue for it is good after `expires_at`. `token_id` names it among all tokens of the provider: a
    second copy of it, however it is written, has the same. With `once_until` the gateway accepts it a single time, and
    remembers that until then: from then on the provider itself must refuse it.
    """

    user: UserInfo
    expires_at: datetime
    token_id: str
    once_until: datetime | None = None


@runtime_checkable
class VerifiesTokens(Protocol):
    """An identity provider for programs, which prove who they are with a token that their platform has issued for us.

    The gateway calls `verify_token` when a program presents such a token at ``/auth/<name>``, as a bearer token, or at
    ``POST /auth/token`` (RFC 8693). What it then issues is not renewed: the program comes again with a newer token of
    its platform. `recognizes_token` tells, by what the token says and nobody has verified, whether this provider is the
    one to judge it; it must not ask anybody. Raise `LoginRefused` if the token is not accepted. Any other exception
    counts as an outage. No error and no log line may repeat the token, or any part of it.
    """

    def recognizes_token(self, token: str) -> bool: ...

    async def verify_token(self, token: Secret) -> VerifiedToken: ...


@runtime_checkable
class BoundToCluster(Protocol):
    """A provider whose users may be the service accounts of a cluster: ``system:serviceaccount:NAMESPACE:NAME``.

    `bound_cluster` is the upstream that has them, or empty. They get neither a prefix nor groups of other providers'
    making. From a provider without it, or bound to nothing, no name that begins with ``system:`` is accepted.
    """

    bound_cluster: str


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

    Lines of a policy that can match nobody are then reported, and the role that a cluster gives to the gateway names
    the users. For a provider without it, every name is possible. It may raise if its source cannot be read.
    """

    def produces(self) -> Produces: ...


@runtime_checkable
class ReturnsByPost(Protocol):
    """A trait: browsers return to the provider with a form that the identity system's page posts.

    So does the POST binding of SAML, and ``response_mode=form_post`` of OpenID Connect. `handle_provider` then gets a
    request with the method POST and the form, as it was sent. Each of its redirects must have the parameter that
    `Redirect.state_name` names, with a value that nobody can guess: a form of another site comes without the browser's
    cookies, so the gateway takes it in, has the browser come back by itself, and then compares that value with the one
    that this very browser was sent away with. At a provider without the trait, forms of other sites are refused.
    """

    returns_by_post: bool


@runtime_checkable
class StepsUp(Protocol):
    """A trait: the provider asks its identity system for what `LoginRequest.required` says.

    `handle_client` asks for it (``acr_values`` and ``max_age`` of OpenID Connect, ``RequestedAuthnContext`` and
    ``ForceAuthn`` of SAML). `handle_provider` writes what the identity system answers into the user, by
    `ostiary_gateway.sessions.authentication_context`; whether that is enough, the gateway judges. At a gateway
    without such a provider a step-up rule can never be met, and its configuration is refused.
    """

    steps_up: bool


@dataclass(frozen=True, slots=True)
class PublishedDocument:
    """What the gateway serves for a provider, to anybody who asks."""

    content: bytes
    media_type: str


@runtime_checkable
class PublishesMetadata(Protocol):
    """An identity provider that has a document for the administrators of its identity system: the metadata of SAML.

    The gateway serves it at ``/auth/<name>/metadata``, to everybody. In *request* only `callback_url` matters.
    """

    async def publish_metadata(self, request: LoginRequest) -> PublishedDocument: ...


@runtime_checkable
class NeedsClientCertificate(Protocol):
    """A trait: the provider judges `LoginRequest.peer_certificate`, be it a person's or that of a proxy in front.

    The gateway then asks clients for a certificate, and a configuration without ``listen.tls.clientCA`` is refused. For
    a provider without it nothing is required, and `peer_certificate` may always be None.
    """

    needs_client_certificate: bool


@runtime_checkable
class Unauthenticated(Protocol):
    """A trait: everybody who can connect is signed in, without any proof.

    Together with `ostiary_gateway.interfaces.authorization.AllowsEverything` this opens the gateway to all, so it then
    serves this machine only, unless the operator says otherwise. A provider without it keeps the contract: it asks for
    proof.
    """

    proves_nothing: bool


@runtime_checkable
class Revalidates(Protocol):
    """An identity provider that can say, without the person, whether a user is still one.

    Called when a session is renewed. Raise `LoginRefused` when the user is no longer known; the session ends.
    """

    async def revalidate(self, user: UserInfo) -> UserInfo: ...


@runtime_checkable
class AsksAgain(Protocol):
    """An identity provider that can ask its identity system about a user again, with what it kept at sign-in.

    Called when a session is renewed for which something is kept, in place of `revalidate`. The answer is as fresh as
    that of a sign-in, groups included; its `kept` takes the place of the old one. Raise `LoginRefused` when the user
    is no longer known, or what was kept is no longer good; the session ends. Any other exception counts as an outage,
    and the session can be renewed later with the old one. For one session it is called once at a time.
    """

    async def ask_again(self, user: UserInfo, kept: Secret) -> Identified: ...


class RenewalCheck(Enum):
    """Who is asked about a user when a session is renewed."""

    ASKED = "asked"  # the identity system, always
    WITH_KEPT = "with kept"  # the identity system, where it gave something to ask with (`AsksAgain`)
    NOBODY = "nobody"  # nobody can be: the session ends sooner
    ACCEPTED = "accepted"  # nobody, and the operator has said so: the session lasts as long as others
    SIGN_IN = "sign in"  # nobody: the session is not renewed at all


@runtime_checkable
class TellsRenewalCheck(Protocol):
    """An identity provider that says who is asked at renewals.

    For a provider without it, `RenewalCheck.ASKED` is assumed if it has `revalidate`, and else `RenewalCheck.NOBODY`.
    """

    renewal_check: RenewalCheck


# Signing out where more than the gateway is concerned: the identity system ends a sign-in, or is told that one ended.
#
# Two abilities of identity providers: `TakesLogouts` for what the identity system starts (the back channel and the
# front channel of OpenID Connect, single logout of SAML), `SignsOutElsewhere` for what a person starts on our own page.


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
