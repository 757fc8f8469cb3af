"""Identity providers: authenticate users and clients, check them again at refresh, and end their sign-ins."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import Secret, UserInfo


@dataclass(frozen=True, slots=True)
class RequiredAuthentication:
    """How a user must have signed in, as reported by the IdP.

    With one of the levels `acr_values`, by one of the methods `amr_values`, and no longer ago than `max_age`. An empty
    value or None requires nothing.
    """

    acr_values: tuple[str, ...] = ()
    max_age: timedelta | None = None
    amr_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A request to ``/auth`` or ``/auth/<name>/provider``, as a provider sees it.

    `headers` have lower-case names in the original order. `query` and `form` are decoded pairs; `raw_query` is the
    unmodified query, for signatures over its bytes. The IdP must send the browser back to `callback_url`.
    `peer_certificate` (DER) was verified by the listener; `server_certificate` (DER) is the listener's own on this
    connection, None without TLS, as behind a proxy that terminates it.

    `remembered` is the state that the provider stored with its `Redirect`. It is empty on the first request, and for a
    browser that did not begin this login, began it with another provider, or too long ago. `request_id` is shared by
    log, audit event and error page; a provider may log it. `required` is set if the user is signed in already and must
    prove more (a step-up): see `StepsUp`.
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
        """Return the only header of this name; None if it is absent, or repeated and therefore ambiguous."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirect the browser to *url*, a page of the IdP.

    The gateway stores `remember` on the server (a PKCE verifier, a nonce) for one return within ten minutes. A provider
    thus needs no storage, and any worker can complete a login. The IdP must return the parameter `state_name` of the
    URL unchanged under the same name (``RelayState`` in SAML); otherwise `LoginRequest.remembered` is empty. If the URL
    has no such parameter because it was sent to the IdP beforehand (a pushed request), `state` is its value.
    """

    url: str
    remember: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    state_name: str = "state"
    state: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PostedForm:
    """Like `Redirect`, but with a page whose form the browser posts to *url*: the POST binding of SAML.

    `fields` must not be secret. The field `state_name` must come back unchanged.
    """

    url: str
    fields: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    remember: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    state_name: str = "state"


@dataclass(frozen=True, slots=True)
class Challenge:
    """Request a proof from the client: `www_authenticate` is sent with a 401 of ``/auth``, and nowhere else.

    `advice` is shown to a user whose browser has no such proof.
    """

    www_authenticate: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Identified:
    """A user, what the provider needs to refresh the session, and how the sign-in may end.

    `kept` (such as a refresh token) is sealed with a secret that only the client has, so that reading the store is not
    enough to use it. It belongs to one session: other sessions of the same sign-in have none.

    `session_id` and `subject` are the IdP's identifiers of this sign-in and of the user: ``sid`` and ``sub`` in OpenID
    Connect, NameID with SessionIndex and NameID alone in SAML. Empty if there is none. `session_id` must be unique per
    sign-in of a provider, because sign-ins that share one end together. The IdP can end the sign-in by them later
    (`TakesLogouts`); the gateway stores digests of them.

    `sign_out_hint` is what `SignsOutElsewhere.sign_out` needs (an ID token, a NameID with its qualifiers). It is sealed
    like `kept`, for the browser's session only, and dropped if it is larger than 8 KiB.

    With `once_until`, the proof (a SAML assertion, a Kerberos ticket) is valid for one sign-in. `token_id` is its
    unique name among those of the provider. The gateway stores it until then and rejects a second use in any replica;
    afterwards the provider itself must reject it.

    With `session_until`, the IdP limits the sign-in (SessionNotOnOrAfter of SAML): no session or token outlives it.

    `www_authenticate` is sent to the client with the response, and proves the gateway's identity (mutual
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
    """Identify the user who signs in at ``/auth``.

    The gateway calls `handle_client` for every request to ``/auth`` (or ``/auth/<name>``). Return a `UserInfo` if the
    request itself proves the identity (a password, a cookie, a client certificate), a `Redirect` or a `PostedForm` to
    the IdP's login page, or a `Challenge` if the client can send a proof with its next request. After a redirect, the
    browser returns to ``/auth/<name>/provider`` and `handle_provider` completes the sign-in; a provider that never
    redirects raises `LoginRefused` there.

    One instance serves all requests concurrently. Raise `ostiary.errors.LoginRefused` to deny the sign-in. Any other
    exception is treated as an outage of the IdP. No token is issued in either case. Groups in the `UserInfo` are
    ignored unless a group provider reads them: the gateway owns tokens, their lifetime, and what they attest.
    """

    async def handle_client(
        self, request: LoginRequest
    ) -> UserInfo | Identified | Redirect | PostedForm | Challenge: ...

    async def handle_provider(self, request: LoginRequest) -> UserInfo | Identified: ...


class SignIn(Enum):
    """How users sign in with a provider."""

    REDIRECT = "redirect"  # in a browser, on the IdP's own pages
    PASSWORD = "password"  # noqa: S105  # with a name and a password, sent as ``Authorization: Basic``
    NEGOTIATE = "negotiate"  # by a Kerberos ticket, sent as ``Authorization: Negotiate``
    AMBIENT = "ambient"  # by what the request has anyway: a certificate, a header, a cookie
    PROGRAM = "program"  # by a workload's token; not offered to users


@runtime_checkable
class TellsSignIn(Protocol):
    """An identity provider that declares how users sign in, so that a client can offer it.

    Without it, `SignIn.REDIRECT` is assumed, since a browser can do all of them.
    """

    sign_in: SignIn


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The subject of a token that another system issued for the gateway.

    Nothing that the gateway issues for it is valid after `expires_at`. `token_id` is unique among the tokens of the
    provider: a second copy of a token, in any encoding, has the same. With `once_until`, the gateway accepts the token
    once and stores its id until then; afterwards the provider itself must reject it.
    """

    user: UserInfo
    expires_at: datetime
    token_id: str
    once_until: datetime | None = None


@runtime_checkable
class VerifiesTokens(Protocol):
    """An identity provider for workloads, which authenticate with a token that their platform issued for the gateway.

    The gateway calls `verify_token` for a bearer token at ``/auth/<name>``, or a token at ``POST /auth/token`` (RFC
    8693). The issued token cannot be refreshed: the workload sends a newer token of its platform. `recognizes_token`
    decides, from the unverified content of the token, whether this provider is responsible for it; it must not do I/O.
    Raise `LoginRefused` if the token is not accepted. Any other exception is treated as an outage. No error and no log
    line may contain the token, or any part of it.
    """

    def recognizes_token(self, token: str) -> bool: ...

    async def verify_token(self, token: Secret) -> VerifiedToken: ...


@runtime_checkable
class BoundToCluster(Protocol):
    """A provider whose users may be service accounts of a cluster: ``system:serviceaccount:NAMESPACE:NAME``.

    `bound_cluster` is the upstream of that cluster, or empty. These users get neither a prefix nor groups of other
    providers. Names that begin with ``system:`` are rejected from any other provider.
    """

    bound_cluster: str


@dataclass(frozen=True, slots=True)
class Produces:
    """The possible users of an identity provider, before any prefix.

    `usernames` are all of them, or None if they cannot be listed. `uid` says whether users have one, `extra` which
    extra keys they can have.
    """

    usernames: frozenset[str] | None = None
    uid: bool = True
    extra: tuple[str, ...] = ()


@runtime_checkable
class TellsWhatItProduces(Protocol):
    """An identity provider that can describe its users in advance.

    Lines of a policy that match no user are then reported, and the impersonation role of the gateway lists the users.
    Without it, every name is possible. May raise if the source cannot be read.
    """

    def produces(self) -> Produces: ...


@runtime_checkable
class ReturnsByPost(Protocol):
    """Declares that browsers return to the provider with a form posted from the IdP's page.

    Used by the POST binding of SAML, and ``response_mode=form_post`` of OpenID Connect. `handle_provider` receives a
    POST request with the form. Each redirect must have the parameter `Redirect.state_name`, with an unguessable value:
    a cross-site form arrives without the browser's cookies, so the gateway stores it, has the browser return by itself,
    and then compares that value with the one that this browser was redirected with. Without this declaration,
    cross-site forms are rejected.
    """

    returns_by_post: bool


@runtime_checkable
class StepsUp(Protocol):
    """Declares that the provider requests from its IdP what `LoginRequest.required` contains.

    `handle_client` requests it (``acr_values`` and ``max_age`` of OpenID Connect, ``RequestedAuthnContext`` and
    ``ForceAuthn`` of SAML). `handle_provider` records the IdP's result in the user with
    `ostiary_gateway.sessions.authentication_context`; the gateway decides whether it suffices. Step-up rules without
    such a provider are rejected, because they could never be met.
    """

    steps_up: bool


@dataclass(frozen=True, slots=True)
class PublishedDocument:
    """A document that the gateway serves for a provider, without authentication."""

    content: bytes
    media_type: str


@runtime_checkable
class PublishesMetadata(Protocol):
    """An identity provider with a document for the administrators of its IdP: the metadata of SAML.

    The gateway serves it at ``/auth/<name>/metadata``, without authentication. Only `callback_url` of *request* is set.
    """

    async def publish_metadata(self, request: LoginRequest) -> PublishedDocument: ...


@runtime_checkable
class NeedsClientCertificate(Protocol):
    """Declares that the provider checks `LoginRequest.peer_certificate`, of a user or of a proxy in front.

    The gateway then requests client certificates, and rejects a configuration without ``listen.tls.clientCA``.
    Otherwise nothing is required, and `peer_certificate` may always be None.
    """

    needs_client_certificate: bool


@runtime_checkable
class Unauthenticated(Protocol):
    """Declares that every client that can connect is signed in without any proof.

    Together with `ostiary_gateway.interfaces.authorization.AllowsEverything` this opens the gateway to everyone, so it
    then listens on localhost only, unless the operator overrides that. Other providers require a proof.
    """

    proves_nothing: bool


@runtime_checkable
class Revalidates(Protocol):
    """An identity provider that can check without user interaction whether a user still exists.

    Called when a session is refreshed. Raise `LoginRefused` if the user is no longer known; the session ends.
    """

    async def revalidate(self, user: UserInfo) -> UserInfo: ...


@runtime_checkable
class AsksAgain(Protocol):
    """An identity provider that can query its IdP about a user again, with what it stored at sign-in.

    Called instead of `revalidate` when a session with stored state is refreshed. The result is as fresh as that of a
    sign-in, groups included; its `kept` replaces the old one. Raise `LoginRefused` if the user is no longer known, or
    the stored state is no longer valid; the session ends. Any other exception is treated as an outage, and the session
    can be refreshed later with the old state. Calls for one session never overlap.
    """

    async def ask_again(self, user: UserInfo, kept: Secret) -> Identified: ...


class RenewalCheck(Enum):
    """How a user is checked when a session is refreshed."""

    ASKED = "asked"  # by the IdP, always
    WITH_KEPT = "with kept"  # by the IdP, if it issued something to query with (`AsksAgain`)
    NOBODY = "nobody"  # not possible: the session ends sooner
    ACCEPTED = "accepted"  # not checked, and the operator accepts that: the session lasts as long as others
    SIGN_IN = "sign in"  # not possible: the session is not refreshed at all


@runtime_checkable
class TellsRenewalCheck(Protocol):
    """An identity provider that declares how users are checked at refresh.

    Without it, `RenewalCheck.ASKED` is assumed if it has `revalidate`, and otherwise `RenewalCheck.NOBODY`.
    """

    renewal_check: RenewalCheck


# Federated logout: `TakesLogouts` for what the IdP initiates (back-channel and front-channel logout of OpenID Connect,
# single logout of SAML), `SignsOutElsewhere` for what a user initiates on the gateway's page.


@dataclass(frozen=True, slots=True)
class Logout:
    """A logout reported by the IdP, with the identifiers of `Identified.session_id` and `Identified.subject`.

    With `session_id`, that one sign-in ends: every session that came from it, including those of the command line and
    of web applications; and of the same `subject`, sign-ins without a session id. With `subject` alone, all sign-ins of
    that user at this provider end. With neither, nothing ends.

    `verified` means that the IdP's signature was checked. Unverified messages can be forged by anyone, so they end
    existing sessions but block no login in progress.

    `token_id` is unique among the messages to this provider, and is stored until `once_until`: a replay ends nothing,
    and is rejected. Afterwards the provider itself must reject it.

    `answer` is the response: None (a 200 without a body), or where the browser continues. With `is_return`, the browser
    returns from where `sign_out` sent it, and shows the signed-out page.
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
    """An identity provider whose IdP reports ended sign-ins.

    The gateway calls `handle_logout` for every GET and POST at ``/auth/<name>/logout``, cross-site forms and requests
    of servers included. It sees no cookies: only the content of the message counts, not who is signed in. Raise
    `LoginRefused` if the message is invalid: it is rejected with 400, and counted against the address that sent it. Any
    other exception is treated as an outage, and the IdP may retry.

    `handle_client` and `handle_provider` must return an `Identified` with `subject`, and with `session_id` if the IdP
    has one: without them, no session can be found.
    """

    async def handle_logout(self, request: LoginRequest) -> Logout: ...


@dataclass(frozen=True, slots=True)
class SignOut:
    """A user signed out on the gateway's page; the session has been deleted here.

    `hint` is the `Identified.sign_out_hint`, or None. The IdP may send the browser back to `return_url`,
    ``/auth/<name>/logout``.
    """

    hint: Secret | None
    return_url: str


@runtime_checkable
class SignsOutElsewhere(Protocol):
    """An identity provider that can also end the session at its IdP.

    The gateway calls `sign_out` after a user has signed out on its page. Return where the browser goes next, or None if
    there is nothing to do. An exception is logged, and the user is signed out here anyway. No state is stored for the
    return: `remember` of the result must be empty.
    """

    async def sign_out(self, signed_out: SignOut) -> Redirect | PostedForm | None: ...
