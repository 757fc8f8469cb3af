"""The nouns of ostiary: values without behaviour, frozen, and without any input or output.

Everything else in the package speaks in these. JSON spellings stay in `ostiary.wire`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NoReturn, Protocol


class Secret:
    """Text that must not be shown.

    It prints as ``Secret(***)``, compares in constant time, and refuses to be formatted or pickled; only `reveal()`
    gives the text, so every use of it can be found by searching for that name.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __format__(self, spec: str) -> NoReturn:
        # The mask would end up in what is formatted: a file, a header, a command line.
        raise TypeError("a Secret cannot be formatted: use reveal() for its text, or !r to print it masked")

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = (text.encode("utf-8", "surrogatepass") for text in (self._text, other._text))
        return hmac.compare_digest(mine, theirs)

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled: it would leave this process in plain text")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self


class SignatureScheme(Enum):
    """What a `DeviceKey` is asked for: how the digest was made, and for RSA how it is padded.

    PSS has a salt as long as the digest, and MGF1 with the same hash (RFC 8446, 4.2.3).
    """

    ECDSA_SHA256 = "ecdsa-sha256"
    ECDSA_SHA384 = "ecdsa-sha384"
    ECDSA_SHA512 = "ecdsa-sha512"
    RSA_PSS_SHA256 = "rsa-pss-sha256"
    RSA_PSS_SHA384 = "rsa-pss-sha384"
    RSA_PSS_SHA512 = "rsa-pss-sha512"
    RSA_PKCS1_SHA256 = "rsa-pkcs1-sha256"
    RSA_PKCS1_SHA384 = "rsa-pkcs1-sha384"
    RSA_PKCS1_SHA512 = "rsa-pkcs1-sha512"

    @property
    def hash_name(self) -> str:
        """As `hashlib` has it."""
        return self.value.rpartition("-")[2]


class DeviceKey(Protocol):
    """A private key that is kept elsewhere, in a token, a TPM or a service: it signs, and that is all it does.

    Threads share it, so `sign` may be called by several at once. A handshake waits for it: what cannot answer must
    raise, in bounded time. Raise `ostiary.errors.KeyUnusable`; other exceptions are told as they are.
    """

    @property
    def public_key(self) -> object:
        """The public half: an EC or RSA public key of the library ``cryptography``."""

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        """The signature over *digest*: for ECDSA two numbers in DER, for RSA as long as the key."""

    def close(self) -> None:
        """Let go of the device. It may be called twice; `sign` is not called after it."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate chain in PEM, and its private key: PEM as well, in memory only, or a key that signs."""

    chain_pem: str
    key_pem: Secret = field(default_factory=lambda: Secret(""))
    not_before: datetime | None = None
    not_after: datetime | None = None
    device_key: DeviceKey | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Credential:
    """What a client presents: a token, a client certificate, or both, and when they expire.

    Compared by identity: a plugin may answer twice with the same token, and the second answer is
    still newer than the first. `basic` is the username and password of old kubeconfigs.
    """

    token: Secret | None = None
    certificate: ClientCertificate | None = None
    expires_at: datetime | None = None
    basic: tuple[str, Secret] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stood: the file it came from, the path inside it, and the line."""

    file: str | None = None
    path: str = ""
    line: int | None = None

    def __str__(self) -> str:
        file = self.file or "<memory>"
        if self.line is not None:
            file = f"{file}:{self.line}"
        return f"{file}, {self.path}" if self.path else file


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration, and where it stands."""

    message: str
    place: Place = field(default_factory=Place)
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


# --- the gateway's nouns: who asks, what is asked, what was decided ---


@dataclass(frozen=True, slots=True)
class UserInfo:
    """Who someone is, as in a TokenReview. The strings mean what the providers say they mean, and nothing to us.

    `extra` is sorted by key, and each key stands once, so that equal users are equal values.
    """

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition of a selector, as in a SubjectAccessReview: ``key operator values``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a request asks for, whoever sends it.

    Both views of it are here: `verb` is the Kubernetes verb of today (get, list, watch, create, ...), `method`
    and `modifier` are the design document's. For a path that is no resource's, `is_resource` is false and only
    `verb`, `method`, `modifier` and `path` are set. Selectors are None where the request has none that can be read.
    `upstream` is the name of the upstream that would serve it; empty for the gateway's own API, and where a cluster
    asks us through a webhook. `of_kubernetes` says that a Kubernetes API is asked, so the paths of its discovery are
    that and nothing else.
    """

    verb: str
    method: str
    path: str
    is_resource: bool = False
    modifier: str = ""
    api_group: str = ""
    api_version: str = ""
    namespace: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    field_selector: tuple[Requirement, ...] | None = None
    label_selector: tuple[Requirement, ...] | None = None
    capabilities: tuple[str, ...] = ()
    upstream: str = ""
    of_kubernetes: bool = False

    @property
    def object_namespace(self) -> str:
        """The document's Namespace: empty when the object is itself a namespace."""
        return "" if self.resource == "namespaces" else self.namespace


@dataclass(frozen=True, slots=True)
class Attributes:
    """What an authorization provider decides on: who asks, and for what."""

    user: UserInfo
    request: RequestInfo

    @property
    def upstream(self) -> str:
        """Where it would be done: a right at one upstream need not be one at another."""
        return self.request.upstream


class Verdict(Enum):
    ALLOW = "allow"
    DENY = "deny"
    NO_OPINION = "no opinion"


@dataclass(frozen=True, slots=True)
class Decision:
    """A provider's answer. `reason` is for the operator.

    `hidden` goes with a refusal: the user may know nothing of what is there. If the operator has set
    ``authorization.hideDenied``, the answer to a read is then the one that a missing object gets (404); otherwise, and
    for everything that changes, watches or connects, it is "forbidden" (403).
    """

    verdict: Verdict
    reason: str = ""
    hidden: bool = False

    @property
    def allowed(self) -> bool:
        return self.verdict is Verdict.ALLOW
