"""Tests credentials at the registry itself, without pulling anything: which of them does it accept?

    GET /v2/ -> challenge -> Basic: GET /v2/ again     Bearer: token from the realm -> GET /v2/  [-> HEAD manifest]

No text of a server is quoted except its error codes. A credential is sent only to the registry and to the realm that it
names, and to neither over plain HTTP unless the registry is on this machine or the caller allows it.
"""

from __future__ import annotations

import json
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from enum import Enum
from urllib.parse import SplitResult, urlencode, urlsplit

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.go_text import bytes_of
from ostiary.core.http import NO_REPLY, OutgoingHttp, reason_of
from ostiary.core.loopback import is_loopback
from ostiary.core.redaction import redact
from ostiary.core.text import fits_token_header, printable
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.credentials import ImageCredential
from ostiary.registry.image_name import DOCKER_HUB, ImageName
from ostiary.wire.www_authenticate import ChallengeError, WwwChallenge, parse_challenges

HUB_PULL_HOST = "registry-1.docker.io"
SECONDS = 10.0
LARGEST_BODY = 1 << 20
CLIENT_ID = "ostiary"
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
)
_ERROR_CODE = re.compile(r"[A-Z][A-Z_]{2,40}")


class Answered(Enum):
    """The registry's response to a credential. NOT_TRIED: it was not sent, and `CredentialAttempt.message` says why."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FAILED = "failed"
    NOT_TRIED = "not-tried"


@dataclass(frozen=True, slots=True)
class CredentialAttempt:
    """One credential at the registry. `username` and `source` are empty for an attempt without credentials."""

    username: str
    key: str
    source: str
    answered: Answered
    message: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The results. `reached` is False if the registry was not reachable, and `message` then says why."""

    registry: str
    repository: str
    challenge: str
    reached: bool
    message: str
    attempts: tuple[CredentialAttempt, ...] = ()

    @property
    def ok(self) -> bool:
        return any(attempt.answered is Answered.ACCEPTED for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """`manifest`: also check that the image exists, with a HEAD request. `seconds` is the timeout of one response."""

    plain_http: bool = False
    authorities_pem: str | None = None
    manifest: bool = False
    seconds: float = SECONDS


def probe(
    image: ImageName,
    credentials: Sequence[ImageCredential],
    *,
    settings: ProbeSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ProbeResult:
    """Try each of *credentials* for *image*. If there are none, try without credentials, like the kubelet.

    Errors of the registry are part of the result. Raises `ConfigurationError` for an image without a registry, and
    `TransportError` for invalid CA certificates.
    """
    if not image.domain:
        raise ConfigurationError("there is no registry to ask", cause="the image's name has no host that can be one")
    return _Probing(image, settings or ProbeSettings(), clock).probe(credentials)


class _Unanswered(Exception):
    """A request got no usable response; the text is the reason for the user."""


@dataclass(frozen=True, slots=True)
class _RegistryReply:
    status: int
    challenges: tuple[WwwChallenge, ...] = ()
    # It may contain a token.
    body: bytes = field(default=b"", repr=False)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refuses(self) -> bool:
        return self.status in (401, 403)

    def fields(self) -> Mapping[str, object]:
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def __str__(self) -> str:
        errors = self.fields().get("errors")
        codes = [error.get("code") for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
        known_codes = [code for code in codes if isinstance(code, str) and _ERROR_CODE.fullmatch(code)]
        return f"HTTP {self.status}" + (f" ({', '.join(known_codes)})" if known_codes else "")


class _Probing:
    def __init__(self, image: ImageName, settings: ProbeSettings, clock: Clock) -> None:
        self._image, self._settings = image, settings
        host = HUB_PULL_HOST if image.domain == DOCKER_HUB else image.domain
        self._base = urlsplit(f"{'http' if settings.plain_http else 'https'}://{host}/v2/")
        self._http = OutgoingHttp(
            context=build_context(TlsSettings(settings.authorities_pem)),
            seconds=settings.seconds,
            largest=LARGEST_BODY,
            proxies={},
            clock=clock,
        )
        self._scope = f"repository:{image.path}:pull"

    def probe(self, credentials: Sequence[ImageCredential]) -> ProbeResult:
        try:
            answer = self._first_contact()
        except _Unanswered as error:
            return self._result("", False, f"the registry is unavailable: {error}")
        challenge = _bearer_or_basic(answer.challenges)
        if answer.is_good:
            scheme, message = "none", "it requires no credential at /v2/"
        elif answer.status != 401:
            return self._result("", False, f"this is not a registry: /v2/ answered {answer}")
        elif challenge is None:
            return self._result("", False, "it asks for a proof of identity that is neither Basic nor Bearer")
        else:
            scheme, message = challenge.scheme, f"it asks for {challenge.scheme.capitalize()}"
        to_try: Sequence[ImageCredential | None] = credentials or (None,)
        attempts = tuple(self._attempt(credential, challenge) for credential in to_try)
        return self._result(scheme, True, message, attempts)

    def _result(
        self, challenge: str, reached: bool, message: str, attempts: tuple[CredentialAttempt, ...] = ()
    ) -> ProbeResult:
        registry = f"{self._base.scheme}://{self._base.netloc}"
        return ProbeResult(registry, self._image.repository, challenge, reached, message, attempts)

    def _first_contact(self) -> _RegistryReply:
        """Connect without a credential. A registry on this machine may use plain HTTP, as in docker."""
        try:
            return self._request("GET", self._base)
        except _Unanswered:
            if self._base.scheme == "http" or not _is_local(self._base) or self._settings.authorities_pem is not None:
                raise
            plain = self._base._replace(scheme="http")
            answer = self._request("GET", plain)
            self._base = plain
            return answer

    # --- one credential ---

    def _attempt(self, credential: ImageCredential | None, challenge: WwwChallenge | None) -> CredentialAttempt:
        try:
            outcome, message = self._try(credential, challenge)
        except _Unanswered as error:
            outcome, message = Answered.FAILED, str(error)
        if credential is None:
            return CredentialAttempt("", "", "", outcome, message)
        return CredentialAttempt(
            redact(credential.username), printable(credential.key), str(credential.source), outcome, message
        )

    def _try(self, credential: ImageCredential | None, challenge: WwwChallenge | None) -> tuple[Answered, str]:
        if challenge is None:
            return self._judge(None)
        if challenge.scheme == "basic":
            if credential is None:
                return Answered.REJECTED, "the registry requires a credential, and there is none"
            if not credential.username and not credential.password:
                return Answered.NOT_TRIED, "it has no username and password, and the registry requires both"
            return self._judge(_basic(credential))
        if credential is not None and credential.registry_token:
            return self._judge(_bearer(credential.registry_token))
        realm, why_not = self._realm(challenge)
        if realm is None:
            return Answered.NOT_TRIED, why_not
        return self._try_token(credential, realm, challenge.parameters.get("service", ""))

    def _try_token(self, credential: ImageCredential | None, realm: SplitResult, service: str) -> tuple[Answered, str]:
        answer = self._ask_for_token(credential, realm, service)
        host = printable(realm.netloc)
        if answer.status in (400, 401, 403):
            return Answered.REJECTED, f"{host} gives no token for it: {answer}"
        if not answer.is_good:
            return Answered.FAILED, f"{host} could not answer: {answer}"
        fields = answer.fields()
        token = fields.get("token") or fields.get("access_token")
        if not isinstance(token, str) or not fits_token_header(token):
            return Answered.FAILED, f"{host} answered without a usable token"
        return self._judge(_bearer(Secret(token)))

    def _ask_for_token(self, credential: ImageCredential | None, realm: SplitResult, service: str) -> _RegistryReply:
        parameters = {"service": service, "scope": self._scope} if service else {"scope": self._scope}
        if credential is not None and credential.identity_token:
            grant = {"grant_type": "refresh_token", "client_id": CLIENT_ID}
            form = urlencode({**grant, **parameters, "refresh_token": credential.identity_token.reveal()})
            return self._request("POST", realm, form=form.encode())
        has_login = credential is not None and bool(credential.username or credential.password)
        if credential is not None and has_login:
            parameters = {"account": credential.username, **parameters}
        query = "&".join(part for part in (realm.query, urlencode(parameters)) if part)
        return self._request(
            "GET", realm._replace(query=query), _basic(credential) if credential and has_login else None
        )

    def _judge(self, authorization: Secret | None) -> tuple[Answered, str]:
        answer = self._request("GET", self._base, authorization)
        if answer.refuses:
            return Answered.REJECTED, f"the registry rejects it: {answer}"
        if not answer.is_good:
            return Answered.FAILED, f"the registry could not answer: {answer}"
        if not self._settings.manifest:
            return Answered.ACCEPTED, "the registry accepts it"
        reference = self._image.digest or self._image.tag
        url = self._base._replace(path=f"/v2/{self._image.path}/manifests/{reference}")
        answer = self._request("HEAD", url, authorization)
        if answer.is_good:
            return Answered.ACCEPTED, "the registry accepts it, and the image exists"
        if answer.status == 404:
            return Answered.ACCEPTED, "the registry accepts it, but the image does not exist or is not visible to it"
        if answer.refuses:
            return Answered.REJECTED, f"the registry accepts it, but not for this image: {answer}"
        return Answered.FAILED, f"the registry could not tell whether the image exists: {answer}"

    # --- where a credential may be sent ---

    def _realm(self, challenge: WwwChallenge) -> tuple[SplitResult | None, str]:
        """Return the URL for requesting a token, or None and why no credential is sent there."""
        try:
            realm = urlsplit(challenge.realm)
            port = realm.port
        except ValueError:
            return None, "the realm of its challenge is not a URL"
        if realm.scheme not in ("https", "http") or not realm.hostname or port == 0:
            return None, "the realm of its challenge is not an http or https URL"
        if realm.username is not None or realm.password is not None:
            return None, "the realm of its challenge holds a username, which no token service needs"
        if realm.scheme == "http" and self._base.scheme == "https":
            return None, "its token service is on plain http although the registry is on https: nothing is sent there"
        if realm.scheme == "http" and not (self._settings.plain_http or _is_local(realm)):
            return None, "its token service is on plain http and not on this machine: nothing is sent there"
        return realm._replace(fragment=""), ""

    # --- one request ---

    def _request(
        self, method: str, url: SplitResult, authorization: Secret | None = None, *, form: bytes | None = None
    ) -> _RegistryReply:
        """Send one request. Redirects are not followed, because they would pass on the credential."""
        headers = {"Accept": MANIFEST_TYPES if method == "HEAD" else "application/json", "User-Agent": CLIENT_ID}
        if authorization is not None:
            headers["Authorization"] = authorization.reveal()
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if not _has_port(url):
            raise _Unanswered(f"{printable(url.netloc)}: there is no such port")
        try:
            reply = self._http.send(method, url.geturl(), form, headers=headers)
        except NO_REPLY as error:
            reason = _reason(reason_of(error))
        else:
            if reply.is_whole:
                return _RegistryReply(reply.status, _challenges(reply.headers), reply.body)
            reason = f"it answered with more than {LARGEST_BODY} bytes"
        # Raised outside of the handler: an exception of http.client may hold the request.
        raise _Unanswered(f"{printable(url.netloc)}: {reason}")


def _has_port(url: SplitResult) -> bool:
    try:
        _ = url.port
    except ValueError:
        return False
    return True


def _reason(error: BaseException | str) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {printable(error.verify_message)}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak valid TLS; it may use plain http"
    if isinstance(error, OSError):
        return printable(error.strerror or "the connection failed")
    return "it did not send a valid HTTP response"


def _challenges(headers: Message) -> tuple[WwwChallenge, ...]:
    try:
        return parse_challenges(", ".join(headers.get_all("WWW-Authenticate") or []))
    except ChallengeError:
        return ()


def _bearer_or_basic(challenges: Sequence[WwwChallenge]) -> WwwChallenge | None:
    def of(scheme: str) -> Iterator[WwwChallenge]:
        return (challenge for challenge in challenges if challenge.scheme == scheme)

    return next(of("bearer"), None) or next(of("basic"), None)


def _basic(credential: ImageCredential) -> Secret:
    pair = bytes_of(f"{credential.username}:{credential.password.reveal()}")
    return Secret(f"Basic {b64encode(pair).decode()}")


def _bearer(token: Secret) -> Secret:
    if not fits_token_header(token.reveal()):
        raise _Unanswered("the token contains characters that a header cannot carry")
    return Secret(f"Bearer {token.reveal()}")


def _is_local(url: SplitResult) -> bool:
    return is_loopback(url.hostname or "")
