"""Sends one request, signed; after a 401 has the credential replaced and sends it once more.

Every adapter calls this for a request to the cluster.

    has Authorization already?  -> send as it is, whatever comes back
    user:password@ in server?   -> that signs, and of the credential only the certificate is used
    else                        -> obtain the credential, send
    a request signer?           -> it sees the request and adds headers, each time the request is sent
    401?                        -> have the credential replaced, once per generation; send once more
                                   if the body can be sent again (`retry_on` may name 403 too)
    anything else below 500     -> the server took the credential, of the first request or of the second

`Signing` holds these decisions and never waits. `send_signed` and `send_signed_async` are its two drivers; they differ
only in how they wait. An adapter brings a `Carrier`, and no decision of its own.
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
    """What the server said when it rejected a credential. Own sources and v1alpha1 plugins are told this."""

    status: int
    headers: Mapping[str, Sequence[str]]


class CredentialSource(Protocol):
    """Where a connection's credential comes from. Shared by threads and event loops; never blocks."""

    def current(self) -> Credential | Future[Credential]:
        """The credential to use now, or the run that is fetching it. Raises `CredentialError`."""

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | Future[Credential | None] | None:
        """What to use instead of *rejected*; None when there is nothing better to try. Never raises."""

    def note_accepted(self, credential: Credential) -> None:
        """The server took *credential*."""


class Signer(Protocol):
    """The part of a `Connection` that signing needs."""

    @property
    def signing(self) -> Signing: ...

    @property
    def retry_on(self) -> tuple[int, ...]:
        """The statuses that say that the credential was rejected: 401, and 403 for those who ask for it."""

    @property
    def request_signer(self) -> RequestSigner | None: ...


class Carrier(Protocol[Answer]):
    """One request as an HTTP library knows it. Made per request by a synchronous adapter."""

    @property
    def replayable(self) -> bool:
        """Whether the body can be sent a second time."""

    def has(self, header: str) -> bool:
        """Whether the caller set *header* on the request already."""

    def to_sign(self) -> RequestToSign:
        """The request without the headers of ours, for a signer."""

    def send(self, headers: Headers) -> Answer:
        """Send the request with *headers* added, replacing those an earlier `send` added."""

    def status(self, answer: Answer) -> int: ...

    def headers(self, answer: Answer) -> Mapping[str, Sequence[str]]: ...

    def discard(self, answer: Answer) -> None:
        """Free *answer*, which nobody will read: the request is sent again, or was given up."""


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
    """All that the decisions ask of a request."""

    def has(self, header: str) -> bool: ...


class Signature:
    """A credential, and the headers that present it."""

    __slots__ = ("credential", "headers")

    def __init__(self, credential: Credential | None, headers: Headers) -> None:
        self.credential = credential
        self.headers = headers


class Signing:
    """The decisions about the requests of one connection.

    The connection keeps it. The headers are put together once for each credential, and the source is told once that
    the server took one: a request that finds both done compares two identities. Threads share it without a lock,
    because what it remembers is replaced whole.
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
        """The credential that the source knows to have been taken by the server."""

    def for_request(self, request: RequestHeaders) -> Signing:
        """The decisions about *request*: its caller may have set what we would set."""
        # As with client-go, a request that the caller has signed is sent as it is.
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
        """How to sign now, or the run that is fetching the credential. Raises `CredentialError`."""
        source, signature = self._source, self._signature
        if source is None:
            return signature
        credential = source.current()
        if credential is signature.credential:
            return signature
        return credential if isinstance(credential, Future) else self.signature(credential)

    def signature(self, credential: Credential | None) -> Signature:
        signature = self._signature
        # Identity: nothing in a credential changes, and a new one is another object even if its token is the same.
        if signature.credential is not credential:
            signature = self._signature = Signature(credential, self._headers(credential))
        return signature

    def replacement(
        self, credential: Credential | None, status: int, headers: Mapping[str, Sequence[str]]
    ) -> Credential | Future[Credential | None] | None:
        """What to sign with instead, now that the server has rejected *credential*; None when its answer stands."""
        if credential is None or self._source is None or self._authorization is not None:
            return None
        return self._source.replacement(credential, Rejection(status, headers))

    def note(self, credential: Credential | None, status: int) -> None:
        """Tell the source if the server took *credential*. A re-sent request counts like the first."""
        if credential is None or self._source is None or self._authorization is not None:
            return
        # A 401 is none, whether or not it has the credential replaced.
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
    """The statuses that say that a credential was rejected; raises `ConfigurationError` for others than 401 and 403."""
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
    """The value of ``Authorization``; None for a credential that is a certificate alone."""
    if credential.token:
        return "Bearer " + credential.token.reveal()
    if credential.basic is not None:
        username, password = credential.basic
        return "Basic " + b64encode(f"{username}:{password.reveal()}".encode()).decode("ascii")
    return None


def send_signed(signer: Signer, carrier: Carrier[Answer]) -> Answer:
    """Send one request, signed, and return the answer."""
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
        # The caller stops waiting, and has no answer to close.
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
    """`send_signed` for an event loop, asyncio's or trio's."""
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
