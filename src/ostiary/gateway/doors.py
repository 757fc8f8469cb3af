"""Between the connection code and what answers by itself: /auth, the webhooks, and questions about oneself.

Called by the engine. Reads the body, makes of the exchange what the answering part understands, and sends its answer.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from urllib.parse import parse_qsl

from ostiary.gateway.audit import Network, source_ips
from ostiary.gateway.authenticate import Authenticator, bearer
from ostiary.gateway.authorize import Authorizer
from ostiary.gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary.gateway.login import Login
from ostiary.gateway.paths import AmbiguousRequest, split_target
from ostiary.gateway.request import Arrival, Passage
from ostiary.gateway.self_reviews import SelfReviews
from ostiary.gateway.settings import Webhooks
from ostiary.gateway.webhooks import SubjectAccessReviews, TokenReviews
from ostiary.interfaces.identity import LoginRequest
from ostiary.wire import status

log = logging.getLogger("ostiary.gateway")

LARGEST_FORM = 64 * 1024
# Kubernetes sends selectors along; they are bounded by its own limit on a request's head.
LARGEST_REVIEW = 1024 * 1024
_JSON = (b"Content-Type", b"application/json")
_FORM = "application/x-www-form-urlencoded"


class LoginDoor:
    """``/auth`` and below."""

    def __init__(self, login: Login, trusted_proxies: Sequence[Network] = ()) -> None:
        self._login = login
        self._trusted = trusted_proxies

    async def handle(self, arrival: Arrival) -> int:
        exchange = arrival.exchange
        try:
            body = await read_body(exchange, LARGEST_FORM)
            request = self._request(arrival, body)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return _send(arrival, status.too_large())
        except (AmbiguousRequest, UnicodeDecodeError, ValueError) as error:
            return _send(arrival, status.bad_request(str(error)))
        answer = await self._login.handle(request, arrival.audit_id)
        if exchange.gone:
            return 0
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers
            if name.lower() != "content-length"
        ]
        exchange.respond(answer.status, [(b"Audit-Id", arrival.audit_id.encode()), *headers], answer.body)
        return answer.status

    def _request(self, arrival: Arrival, body: bytes) -> LoginRequest:
        exchange = arrival.exchange
        path, query = split_target(exchange.target, host=exchange.host)
        headers = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in exchange.headers)
        content_type = next((value for name, value in headers if name == "content-type"), "")
        form: tuple[tuple[str, str], ...] = ()
        if content_type.partition(";")[0].strip().lower() == _FORM:
            form = tuple(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64))
        return LoginRequest(
            method=exchange.method.decode("ascii"),
            path=path,
            query=tuple(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=64)),
            form=form,
            headers=headers,
            remote_address=self._client(arrival),
            peer_certificate=exchange.connection.peer_certificate,
        )

    def _client(self, arrival: Arrival) -> str:
        """Who is counted for failed attempts: the client, as far as a trusted proxy vouches for the address."""
        forwarded = [line.decode("latin-1") for line in arrival.scanned.forwarded_for]
        remote = arrival.exchange.connection.remote_address
        return source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]


class WebhookDoor:
    """``/webhooks/token-review`` and ``/webhooks/subject-access-review``, for the callers that are configured."""

    def __init__(self, configured: Webhooks, authenticator: Authenticator, authorizer: Authorizer) -> None:
        self._callers = configured.callers
        self._doors: dict[bytes, TokenReviews | SubjectAccessReviews] = {}
        if configured.token_review:
            self._doors[b"/webhooks/token-review"] = TokenReviews(authenticator, configured.audiences)
        if configured.subject_access_review:
            self._doors[b"/webhooks/subject-access-review"] = SubjectAccessReviews(authorizer)

    async def handle(self, arrival: Arrival) -> int:
        exchange = arrival.exchange
        if not self._is_caller(arrival):
            return _send(arrival, status.unauthorized(), (b"WWW-Authenticate", b"Bearer"))
        # kube-apiserver appends ?timeout=30s to the address it is given.
        door = self._doors.get(exchange.target.partition(b"?")[0])
        if door is None:
            return _send(arrival, status.no_route())
        if exchange.method != b"POST":
            return _send(arrival, status.method_not_allowed(), (b"Allow", b"POST"))
        try:
            body = await read_body(exchange, LARGEST_REVIEW)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return _send(arrival, status.too_large())
        answer = door.answer(body)
        return _send(arrival, answer if isinstance(answer, status.Answer) else await answer)

    def _is_caller(self, arrival: Arrival) -> bool:
        """A verified client certificate with a name from the list, or the token of the file."""
        certificate = arrival.exchange.connection.peer_certificate
        if certificate is not None and self._callers.names and common_name(certificate) in self._callers.names:
            return True
        if self._callers.token_file is None or arrival.scanned.authorization is None:
            return False
        given = bearer(arrival.scanned.authorization)
        try:
            expected = self._callers.token_file.read_bytes().strip()
        except OSError as error:
            log.error("the token of the webhooks' callers cannot be read", extra={"cause": error.strerror})
            return False
        return bool(expected) and given is not None and hmac.compare_digest(given, expected)


class SelfReviewDoor:
    """Questions that users ask about themselves, answered from our policy."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._reviews = SelfReviews(authorizer)

    async def handle(self, passage: Passage) -> int:
        arrival = passage.arrival
        try:
            body = await read_body(arrival.exchange, LARGEST_REVIEW)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return _send(arrival, status.too_large())
        content_type = _header(arrival, b"content-type") or "application/json"
        answer = self._reviews.answer(passage.plan.info, passage.plan.user, body, content_type)
        return _send(arrival, answer if isinstance(answer, status.Answer) else await answer)


def common_name(der: bytes) -> str:
    """The one common name of a certificate that the listener has verified; empty if it has none, or several."""
    # Imported where it is needed: most gateways ask for no certificates.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _header(arrival: Arrival, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in arrival.exchange.headers if key.lower() == name), "")


def _send(arrival: Arrival, answer: status.Answer, *headers: tuple[bytes, bytes]) -> int:
    if arrival.exchange.gone:
        return 0
    first = (b"Audit-Id", arrival.audit_id.encode())
    arrival.exchange.respond(answer.code, [first, _JSON, *headers], answer.body)
    return answer.code
