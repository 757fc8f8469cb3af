"""The value types of ostiary: immutable, without behavior or input and output.

Used throughout the package. JSON field names stay in `ostiary.wire`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NoReturn, Protocol


class Secret:
    """A text that must not be shown.

    Its repr is ``Secret(***)``. It compares in constant time and cannot be formatted or pickled. Only `reveal()`
    returns the text, so every use can be found by searching for that name.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __format__(self, spec: str) -> NoReturn:
        # Otherwise the mask would end up in a file, a header or a command line.
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
    """A signature algorithm for `DeviceKey`: the hash of the digest, and for RSA the padding.

    The salt of PSS is as long as the digest, and MGF1 uses the same hash (RFC 8446, 4.2.3).
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
        """The name in `hashlib`."""
        return self.value.rpartition("-")[2]


class DeviceKey(Protocol):
    """A private key in a token, a TPM or a service, which can only sign.

    Threads share it, so `sign` may be called concurrently. A TLS handshake waits for it, so `sign` must raise within
    bounded time if the device does not respond. Raise `ostiary.errors.KeyUnusable`; other exceptions are reported as
    they are.
    """

    @property
    def public_key(self) -> object:
        """The public half: an EC or RSA public key of the library ``cryptography``."""

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        """Return the signature of *digest*: in DER for ECDSA, as long as the key for RSA."""

    def close(self) -> None:
        """Release the device. May be called twice; `sign` is not called afterwards."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate chain in PEM, and its private key: PEM in memory, or a `DeviceKey`."""

    chain_pem: str
    key_pem: Secret = field(default_factory=lambda: Secret(""))
    not_before: datetime | None = None
    not_after: datetime | None = None
    device_key: DeviceKey | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Credential:
    """A token, a client certificate, or both, and when they expire.

    Compared by identity: a plugin may return the same token twice, and the second credential is still newer than the
    first. `basic` is the username and password of old kubeconfigs.
    """

    token: Secret | None = None
    certificate: ClientCertificate | None = None
    expires_at: datetime | None = None
    basic: tuple[str, Secret] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a value: the file, the path inside it, and the line."""

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
    """One error in a configuration, and its position."""

    message: str
    place: Place = field(default_factory=Place)
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


# --- gateway: users, requests, decisions ---


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user, as in a TokenReview. The gateway does not interpret the strings; the providers define their meaning.

    `extra` is sorted by key, and keys are unique, so that equal users are equal values.
    """

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a selector, as in a SubjectAccessReview: ``key operator values``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The attributes of a request, regardless of its user.

    It contains both forms: `verb` is the current Kubernetes verb (get, list, watch, create, ...), `method` and
    `modifier` are the design document's. For a path that is not a resource, `is_resource` is false and only `verb`,
    `method`, `modifier` and `path` are set. Selectors are None if the request has no readable one.

    `upstream` is the name of the upstream that would serve it. It is empty for the gateway's built-in API and for
    webhook requests from a cluster. `of_kubernetes`: the request is for a Kubernetes API, so its discovery paths have
    no other meaning.
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
        """The design document's Namespace: empty if the object itself is a namespace."""
        return "" if self.resource == "namespaces" else self.namespace


@dataclass(frozen=True, slots=True)
class Attributes:
    """The input of an authorization provider: user and request."""

    user: UserInfo
    request: RequestInfo

    @property
    def upstream(self) -> str:
        """The upstream of the request. A permission for one upstream does not apply to another."""
        return self.request.upstream


class Verdict(Enum):
    ALLOW = "allow"
    DENY = "deny"
    NO_OPINION = "no opinion"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of an authorization provider. `reason` is for the operator.

    `hidden` accompanies a denial: the user must not learn what exists. If the operator has set
    ``authorization.hideDenied``, the response to a read is that for a missing object (404). Requests that change, watch
    or connect always get "forbidden" (403).
    """

    verdict: Verdict
    reason: str = ""
    hidden: bool = False

    @property
    def allowed(self) -> bool:
        return self.verdict is Verdict.ALLOW
