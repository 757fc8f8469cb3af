"""Send one request with a credential; after a 401, replace the credential and send the request once more.

    has Authorization already?  -> send unchanged, whatever the response
    user:password@ in server?   -> use that; of the credential, use only the certificate
    else                        -> obtain the credential, send
    a request signer?           -> it receives the request and adds headers, each time the request is sent
    401?                        -> replace the credential, once per generation; send once more
                                   if the body is replayable (`retry_on` may include 403)
    anything else below 500     -> the server accepted the credential, of the first or the second request

`Signing` makes these decisions and never blocks. `send_signed` and `send_signed_async` drive it and differ only in how
they wait. An adapter implements `Carrier` and makes no decisions.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ostiary.client.signing import RequestSigner, RequestToSign, signed_headers, signed_headers_async
from ostiary.core.single_flight import wait, wait_async
from ostiary.errors import ConfigurationError
from ostiary.model import Credential, Secret

Headers = Sequence[tuple[str, str]]
Answer = TypeVar("Answer")
UNAUTHORIZED, FORBIDDEN = 401, 403
SERVER_ERROR = 500
REJECTING = (UNAUTHORIZED,)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The server's response that rejected a credential. Passed to own sources and v1alpha1 plugins."""

    status: int
    headers: Mapping[str, Sequence[str]]


class CredentialSource(Protocol):
    """The source of a connection's credential. Shared by threads and event loops; never blocks."""

    def current(self) -> Credential | Future[Credential]:
        """Return the credential to use now, or the future of the run that is fetching it. Raises `CredentialError`."""

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | Future[Credential | None] | None:
        """Return what to use instead of *rejected*, or None if there is nothing better to try. Never raises."""

    def note_accepted(self, credential: Credential) -> None:
        """Record that the server accepted *credential*."""


class Signer(Protocol):
    """The part of a `Connection` that signing needs."""

    @property
    def signing(self) -> Signing: ...

    @property
    def retry_on(self) -> tuple[int, ...]:
        """The statuses that mean that the credential was rejected: 401, and 403 if the application opted in."""

    @property
    def request_signer(self) -> RequestSigner | None: ...


class Carrier(Protocol[Answer]):
    """One request in terms of an HTTP library. Synchronous adapters create one per request."""

    @property
    def replayable(self) -> bool:
        """Whether the body can be sent a second time."""

    def has(self, header: str) -> bool:
        """Whether the caller already set *header* on the request."""

    def to_sign(self) -> RequestToSign:
        """Return the request without the connection's headers, for a signer."""

    def send(self, headers: Headers) -> Answer:
        """Send the request with *headers* added, replacing those that an earlier `send` added."""

    def status(self, answer: Answer) -> int: ...

    def headers(self, answer: Answer) -> Mapping[str, Sequence[str]]: ...

    def discard(self, answer: Answer) -> None:
        """Release *answer* unread, because the request is sent again or was abandoned."""


class AsyncCarrier(Protocol[Answer]):
    """`Carrier` for an event loop."""

    @property
    def replayable(self) -> bool: ...

    def has(self, header: str) -> bool: ...

    async def to_sign(self) -> RequestToSign: ...

    async def send(self, headers: Headers) -> Answer: ...

    def status(self, answer: Answer) -> int: ...

    def headers(self, answer: Answer) -> Mapping[str, Sequence[str]]: ...

    async def discard(self, answer: Answer) -> None: ...


class RequestHeaders(Protocol):
    """What the decisions need to know about a request."""

    def has(self, header: str) -> bool: ...


class Signature:
    """A credential and the headers that present it."""

    __slots__ = ("credential", "headers")

    def __init__(self, credential: Credential | None, headers: Headers) -> None:
        self.credential = credential
        self.headers = headers


class Signing:
    """The decisions about the requests of one connection.

    One per connection. Headers are built once per credential, and the source is notified once that the server accepted
    one; after that, a request compares two identities. Threads share it without a lock, because its state is replaced
    as a whole.
    """

    __slots__ = ("_authorization", "_retries", "_signature", "_source", "impersonation", "taken")

    def __init__(
        self,
        source: CredentialSource | None,
        *,
        authorization: Secret | None = None,
        impersonation: Headers = (),
        retry_on_401: bool = True,
    ) -> None:
        self._source = source
        self._authorization = authorization
        self._retries = retry_on_401
        self.impersonation = impersonation
        self._signature = Signature(None, self._headers(None))
        self.taken: Credential | None = None
        """The credential last reported to the source as accepted by the server."""

    def for_request(self, request: RequestHeaders) -> Signing:
        """Return the decisions for *request*, whose caller may have set some of the headers."""
        # As in client-go, a request that already has Authorization is sent unchanged.
        is_signed = request.has("Authorization")
        if not is_signed and not (self.impersonation and request.has("Impersonate-User")):
            return self
        return Signing(
            None if is_signed else self._source,
            authorization=None if is_signed else self._authorization,
            impersonation=() if request.has("Impersonate-User") else self.impersonation,
            retry_on_401=self._retries,
        )

    def current(self) -> Signature | Future[Credential]:
        """Return how to sign now, or the future of the run that is fetching the credential.

        Raises `CredentialError`.
        """
        source, signature = self._source, self._signature
        if source is None:
            return signature
        credential = source.current()
        if credential is signature.credential:
            return signature
        return credential if isinstance(credential, Future) else self.signature(credential)

    def signature(self, credential: Credential | None) -> Signature:
        signature = self._signature
        # Compare by identity: credentials are immutable, and a new one is another object even if its token is equal.
        if signature.credential is not credential:
            signature = self._signature = Signature(credential, self._headers(credential))
        return signature

    def replacement(
        self, credential: Credential | None, status: int, headers: Mapping[str, Sequence[str]]
    ) -> Credential | Future[Credential | None] | None:
        """Return what to sign with after the server rejected *credential*. None if its response is the result."""
        if credential is None or self._source is None or self._authorization is not None:
            return None
        return self._source.replacement(credential, Rejection(status, headers))

    def note(self, credential: Credential | None, status: int) -> None:
        """Notify the source if the server accepted *credential*. A retried request counts like the first."""
        if credential is None or self._source is None or self._authorization is not None:
            return
        # A 401 never means accepted, even if it is not in `retry_on`.
        if status < SERVER_ERROR and status != UNAUTHORIZED:
            self._source.note_accepted(credential)
            self.taken = credential

    def sends_again(self, newer: Credential | None, *, replayable: bool) -> bool:
        return newer is not None and replayable and self._retries

    def _headers(self, credential: Credential | None) -> Headers:
        authorization = self._authorization.reveal() if self._authorization is not None else None
        if authorization is None and credential is not None:
            authorization = authorization_header(credential)
        if authorization is None:
            return self.impersonation
        return (("Authorization", authorization), *self.impersonation)


def check_retry_on(statuses: object) -> tuple[int, ...]:
    """Return the statuses that mean that a credential was rejected.

    Raises `ConfigurationError` for any but 401 and 403.
    """
    if isinstance(statuses, (tuple, list, set, frozenset)) and all(
        type(status) is int and status in (UNAUTHORIZED, FORBIDDEN) for status in statuses
    ):
        return tuple(sorted(set(statuses)))
    raise ConfigurationError(
        "retry_on cannot be used",
        cause="it is not a list of 401 and 403",
        hint="retry_on=(401,) as client-go, or retry_on=(401, 403) as the 2019 draft of KEP-541",
    )


def authorization_header(credential: Credential) -> str | None:
    """Return the value of ``Authorization``, or None for a credential that is only a certificate."""
    if credential.token:
        return "Bearer " + credential.token.reveal()
    if credential.basic is not None:
        username, password = credential.basic
        return "Basic " + b64encode(f"{username}:{password.reveal()}".encode()).decode("ascii")
    return None


def send_signed(signer: Signer, carrier: Carrier[Answer]) -> Answer:
    """Send one request with a credential and return the response."""
    signing = signer.signing
    if signing.impersonation or carrier.has("Authorization"):
        signing = signing.for_request(carrier)
    signature = signing.current()
    if isinstance(signature, Future):
        credential = wait(signature)
        signature = signing.signature(credential)
    headers, request_signer = signature.headers, signer.request_signer
    if request_signer is not None:
        headers = signed_headers(request_signer, carrier, headers)
    answer = carrier.send(headers)
    status = carrier.status(answer)
    if status not in signer.retry_on:
        if signature.credential is not signing.taken:
            signing.note(signature.credential, status)
        return answer
    replacement = signing.replacement(signature.credential, status, carrier.headers(answer))
    if replacement is None:
        return answer
    try:
        newer = wait(replacement) if isinstance(replacement, Future) else replacement
    except BaseException:
        # The caller stops waiting and never gets the response, so close it here.
        carrier.discard(answer)
        raise
    if not signing.sends_again(newer, replayable=carrier.replayable):
        return answer
    carrier.discard(answer)
    headers = signing.signature(newer).headers
    if request_signer is not None:
        headers = signed_headers(request_signer, carrier, headers)
    answer = carrier.send(headers)
    if (status := carrier.status(answer)) not in signer.retry_on:
        signing.note(newer, status)
    return answer


async def send_signed_async(signer: Signer, carrier: AsyncCarrier[Answer]) -> Answer:
    """Like `send_signed`, for an event loop (asyncio or trio)."""
    signing = signer.signing
    if signing.impersonation or carrier.has("Authorization"):
        signing = signing.for_request(carrier)
    signature = signing.current()
    if isinstance(signature, Future):
        credential = await wait_async(signature)
        signature = signing.signature(credential)
    headers, request_signer = signature.headers, signer.request_signer
    if request_signer is not None:
        headers = await signed_headers_async(request_signer, carrier, headers)
    answer = await carrier.send(headers)
    status = carrier.status(answer)
    if status not in signer.retry_on:
        if signature.credential is not signing.taken:
            signing.note(signature.credential, status)
        return answer
    replacement = signing.replacement(signature.credential, status, carrier.headers(answer))
    if replacement is None:
        return answer
    try:
        newer = await wait_async(replacement) if isinstance(replacement, Future) else replacement
    except BaseException:
        await carrier.discard(answer)
        raise
    if not signing.sends_again(newer, replayable=carrier.replayable):
        return answer
    await carrier.discard(answer)
    headers = signing.signature(newer).headers
    if request_signer is not None:
        headers = await signed_headers_async(request_signer, carrier, headers)
    answer = await carrier.send(headers)
    if (status := carrier.status(answer)) not in signer.retry_on:
        signing.note(newer, status)
    return answer
