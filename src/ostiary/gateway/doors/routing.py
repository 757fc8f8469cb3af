"""Between the connection code and what answers by itself: /auth, the webhooks, and questions about oneself.

Called by the engine. Reads the body, makes of the exchange what the answering part understands, and sends its answer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Sequence
from urllib.parse import parse_qsl

from ostiary.core.caching.bounded import Bounded
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.net import is_loopback
from ostiary.core.tokens import digest
from ostiary.gateway.audit.auditor import Network, source_ips
from ostiary.gateway.authenticate.authenticator import Authenticator, bearer
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.config.settings import Callers, Webhooks
from ostiary.gateway.doors.self_reviews import ReviewAnswer, SelfReviews, review_request, send_review
from ostiary.gateway.doors.webhooks import OnRefused, SubjectAccessReviews, TokenReviews
from ostiary.gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary.gateway.http1.headers import NO_DIGEST
from ostiary.gateway.login.door import Login
from ostiary.gateway.request.stages import Passage, Served
from ostiary.gateway.request.target import AmbiguousRequest, path_of, split_target
from ostiary.interfaces.identity import LoginRequest
from ostiary.wire import status

log = logging.getLogger("ostiary.gateway")

LARGEST_FORM = 64 * 1024
# Kubernetes sends selectors along; they are bounded by its own limit on a request's head.
LARGEST_REVIEW = 1024 * 1024
# A question about oneself is short; reading a long one holds up everybody else.
LARGEST_SELF_REVIEW = 128 * 1024
_JSON = (b"Content-Type", b"application/json")
_FORM = "application/x-www-form-urlencoded"
_STRICT_TRANSPORT = (b"Strict-Transport-Security", b"max-age=31536000")


class LoginDoor:
    """``/auth`` and below."""

    def __init__(self, login: Login, trusted_proxies: Sequence[Network] = ()) -> None:
        self._login = login
        self._trusted = trusted_proxies

    async def handle(self, passage: Passage, served: Served) -> None:
        served(await self._answer(passage))

    async def _answer(self, passage: Passage) -> int:
        exchange = passage.exchange
        try:
            body = await read_body(exchange, LARGEST_FORM)
            request = self._request(passage, body)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return self._unreadable(passage, status.too_large(), "the form is too large")
        except (AmbiguousRequest, UnicodeDecodeError, ValueError) as error:
            return self._unreadable(passage, status.bad_request(str(error)), "the request cannot be read")
        answer = await self._login.handle(request, passage.audit_id)
        if exchange.gone:
            return 0
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers
            if name.lower() != "content-length"
        ]
        headers = [(b"Audit-Id", passage.audit_id.encode()), *headers, *_transport_security(passage)]
        exchange.respond(answer.status, headers, answer.body)
        return answer.status

    def _unreadable(self, passage: Passage, answer: status.Answer, reason: str) -> int:
        request = passage.exchange.request
        path = request.target.partition(b"?")[0].decode("latin-1")
        known = LoginRequest(
            request.method.decode("latin-1"),
            path,
            remote_address=self._client(passage),
            request_id=passage.audit_id,
        )
        self._login.record_unreadable(known, answer.code, reason)
        return _send(passage, answer)

    def _request(self, passage: Passage, body: bytes) -> LoginRequest:
        exchange = passage.exchange
        path, query = split_target(exchange.request.target, host=exchange.request.host)
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in exchange.request.headers
        )
        content_type = next((value for name, value in headers if name == "content-type"), "")
        form: tuple[tuple[str, str], ...] = ()
        if content_type.partition(";")[0].strip().lower() == _FORM:
            form = tuple(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64))
        return LoginRequest(
            method=exchange.request.method.decode("ascii"),
            path=path,
            query=tuple(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=64)),
            form=form,
            headers=headers,
            remote_address=self._client(passage),
            peer_certificate=exchange.connection.peer_certificate,
        )

    def _client(self, passage: Passage) -> str:
        """Who is counted for failed attempts: the client, as far as a trusted proxy vouches for the address."""
        forwarded = [line.decode("latin-1") for line in passage.scanned.forwarded_for]
        remote = passage.exchange.connection.remote_address
        return source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]


def _transport_security(passage: Passage) -> list[tuple[bytes, bytes]]:
    """Where we serve TLS, browsers come back over TLS only. Not on this machine, whose name others serve under, too."""
    exchange = passage.exchange
    if exchange.connection.transport.get_extra_info("ssl_object") is None:
        return []
    name = exchange.request.host.decode("latin-1").rpartition(":")[0] or exchange.request.host.decode("latin-1")
    return [] if is_loopback(name.strip("[]")) else [_STRICT_TRANSPORT]


class WebhookDoor:
    """``/webhooks/token-review`` and ``/webhooks/subject-access-review``, for the callers that are configured.

    A cluster asks for every request of its own, so an answer that needs no waiting is given without a task.
    """

    def __init__(
        self,
        configured: Webhooks,
        authenticator: Authenticator,
        authorizer: Authorizer,
        clock: Clock,
        *,
        on_refused: OnRefused,
    ) -> None:
        self._callers = _Callers(configured.callers, clock)
        self._doors: dict[bytes, TokenReviews | SubjectAccessReviews] = {}
        if configured.token_review:
            self._doors[b"/webhooks/token-review"] = TokenReviews(authenticator, configured.audiences)
        if configured.subject_access_review:
            self._doors[b"/webhooks/subject-access-review"] = SubjectAccessReviews(authorizer, on_refused)
        # kube-apiserver appends this to the address it is given. Others may append what they like.
        self._doors |= {path + b"?timeout=30s": door for path, door in self._doors.items()}

    def handle(self, passage: Passage, served: Served) -> None:
        exchange = passage.exchange
        request = exchange.request
        target = path_of(request.target, request.host)
        door = self._doors.get(target) or self._doors.get(target.partition(b"?")[0])
        try:
            known = self._callers.include(passage)
        except OSError as error:
            # Our own trouble: a 401 would tell the caller that its token is no good.
            log.error("callers.tokenFile cannot be read", extra={"cause": error.strerror})
            served(_send(passage, status.internal()))
            return
        if not known:
            served(_send(passage, status.unauthorized(), (b"WWW-Authenticate", b"Bearer")))
        elif door is None:
            served(_send(passage, status.no_route()))
        elif request.method != b"POST":
            served(_send(passage, status.method_not_allowed(), (b"Allow", b"POST")))
        elif request.content_length is not None and request.content_length > LARGEST_REVIEW:
            served(_send(passage, status.too_large()))
        else:
            body = exchange.whole_body()
            answer = None if body is None else door.answer(body)
            if isinstance(answer, status.Answer):
                served(_send(passage, answer))
            else:
                _Review(door, passage, served).begin(answer)


class _Review:
    """One review on its way: answered in the moment its last byte has come, unless somebody must be asked."""

    __slots__ = ("_door", "_parts", "_passage", "_served", "_size", "_task")

    def __init__(self, door: _Door, passage: Passage, served: Served) -> None:
        self._door, self._passage, self._served = door, passage, served
        self._parts: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self, answer: Awaitable[status.Answer] | None) -> None:
        """Wait for the body, or for *answer* if the question is known."""
        if answer is None:
            self._passage.exchange.accept_body(self)
        else:
            self._wait_for(answer)

    def body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= LARGEST_REVIEW:
            self._parts.append(data)

    def body_end(self) -> None:
        if self._size > LARGEST_REVIEW:
            self._send(status.too_large())
            return
        answer = self._door.answer(b"".join(self._parts))
        if isinstance(answer, status.Answer):
            self._send(answer)
        else:
            self._wait_for(answer)

    def _wait_for(self, answer: Awaitable[status.Answer]) -> None:
        exchange = self._passage.exchange
        exchange.responder = self
        self._task = exchange.connection.loop.create_task(self._answer_later(answer))

    async def _answer_later(self, answer: Awaitable[status.Answer]) -> None:
        try:
            self._send(await answer)
        except Exception as error:
            log.error("a review could not be answered", extra={"cause": type(error).__name__}, exc_info=error)
            self._send(status.internal())

    def _send(self, answer: status.Answer) -> None:
        self._passage.exchange.responder = None
        self._served(_send(self._passage, answer))

    def client_lost(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._served(0)

    def client_full(self) -> None:
        pass

    def client_ready(self) -> None:
        pass


_Door = TokenReviews | SubjectAccessReviews
# How long the token in the callers' file is believed before the file is read again.
CALLERS_SECONDS = 1.0
MOST_CERTIFICATES = 64


class _Callers:
    """Who may ask: a verified client certificate with a name from the list, or whoever has the token of the file."""

    def __init__(self, configured: Callers, clock: Clock) -> None:
        self._configured = configured
        self._clock = clock
        self._token = NO_DIGEST
        self._token_until = float("-inf")
        self._names: Bounded[bytes, str] = Bounded(MOST_CERTIFICATES)

    def include(self, passage: Passage) -> bool:
        """Whether the sender is one of them; raises `OSError` if that cannot be told."""
        certificate = passage.exchange.connection.peer_certificate
        names = self._configured.names
        if certificate is not None and names and self._name(certificate) in names:
            return True
        if self._configured.token_file is None:
            return False
        scanned = passage.scanned
        if scanned.authorization is not None:
            token = bearer(scanned.authorization)
            scanned.digest = NO_DIGEST if token is None else digest(token)
        # Else the head came before, and the digest is all that was kept of it.
        return hmac.compare_digest(scanned.digest, self._expected())

    def _name(self, certificate: bytes) -> str:
        if certificate not in self._names:
            self._names.keep(certificate, common_name(certificate))
        return self._names[certificate]

    def _expected(self) -> bytes:
        """The digest of the token in the file; raises `OSError` if it cannot be read, or holds no token."""
        now = self._clock.monotonic()
        if now >= self._token_until:
            assert self._configured.token_file is not None
            token = self._configured.token_file.read_bytes().strip()
            if not token:
                raise OSError(0, "the file holds no token")
            self._token = digest(token)
            self._token_until = now + CALLERS_SECONDS
        return self._token


class SelfReviewDoor:
    """Questions that users ask about themselves, answered from our policy."""

    def __init__(self, authorizer: Authorizer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviews = SelfReviews(authorizer, clock)

    async def handle(self, passage: Passage) -> int:
        try:
            body = await read_body(passage.exchange, LARGEST_SELF_REVIEW)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return _send(passage, status.too_large())
        request = review_request(passage, body)
        answer = self._reviews.answer(passage.plan.info, passage.plan.user, request)
        return send_review(passage, answer if isinstance(answer, ReviewAnswer) else await answer)


def common_name(der: bytes) -> str:
    """The one common name of a certificate that the listener has verified; empty if it has none, or several.

    Empty, too, for a certificate that is not for clients.
    """
    # Imported where it is needed: most gateways ask for no certificates.
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    certificate = x509.load_der_x509_certificate(der)
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage):
        return ""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _send(passage: Passage, answer: status.Answer, *headers: tuple[bytes, bytes]) -> int:
    if passage.exchange.gone:
        return 0
    lines = b"Audit-Id: %s\r\nContent-Type: application/json\r\n" % passage.audit_id.encode()
    for header in headers:
        lines += b"%s: %s\r\n" % header
    passage.exchange.respond_lines(answer.code, lines, answer.body)
    return answer.code
