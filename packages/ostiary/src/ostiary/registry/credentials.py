"""Registry logins by key, and those that match an image, in the order in which they are tried.

    raw key  ->  normalized key  ->  reverse order of the keys  ->  those that match the image

Used for every source: a docker config, a pull secret, a provider's response. The rules are those of the kubelet's
keyring: every matching key counts, in reverse byte order, so that a longer path comes first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ostiary.model import Secret
from ostiary.registry.image_matching import PatternIndex
from ostiary.registry.image_name import DOCKER_HUB, OLD_DOCKER_HUB, UnparsableAddress, parse_address
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount
from ostiary.wire.go_json import go_json

NO_SECRET = Secret("")
# For how many images one set of credentials caches its result.
MEMO_LIMIT = 1024
_SURROGATE = re.compile("[\ud800-\udfff]")
_SCHEMES = ("https://", "http://")
_API_VERSIONS = (b"/v1/", b"/v2/")


class SourceKind(Enum):
    PROVIDER = "provider"
    FILE = "file"
    SECRET = "secret"  # noqa: S105
    HELPER = "helper"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a credential: the name of a provider or a helper, a file, or ``namespace/name``."""

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """One entry of a docker config."""

    username: str = ""
    password: Secret = NO_SECRET
    email: str = ""
    identity_token: Secret = NO_SECRET
    registry_token: Secret = NO_SECRET

    def __bool__(self) -> bool:
        return bool(self.username or self.password or self.identity_token or self.registry_token)


@dataclass(frozen=True, slots=True)
class ImageCredential:
    """A credential to try. `key` is its normalized key.

    `service_account` is set if the credential is for that account only. `origin` is for `Keyring.report_rejected`.
    """

    username: str
    password: Secret
    key: str
    source: Provenance
    cached: bool = False
    email: str = ""
    identity_token: Secret = NO_SECRET
    registry_token: Secret = NO_SECRET
    service_account: KubernetesServiceAccount | None = None
    origin: object = field(default=None, repr=False, compare=False)

    @property
    def hash(self) -> str:
        """Return the kubelet's hash of the credential, by which it recognizes it in its records of pulled images.

        The kubelet ignores the tokens of an entry, so they are not part of it.
        """
        fields = {"username": self.username, "password": self.password.reveal(), "email": self.email}
        text = go_json({name: text for name, text in fields.items() if text})
        # Go escapes the replacement character that it writes for an invalid UTF-8 byte.
        return hashlib.sha256(_SURROGATE.sub(r"\\ufffd", text).encode()).hexdigest()


class Credentials:
    """The logins of one source. Immutable and thread-safe."""

    def __init__(
        self,
        logins: Iterable[tuple[str, RegistryLogin]],
        source: Provenance,
        *,
        service_account: KubernetesServiceAccount | None = None,
        cached: bool = False,
    ) -> None:
        self.source = source
        self._common = (source, cached, service_account)
        by_key: dict[bytes, list[ImageCredential]] = {}
        for raw, login in logins:
            key = normalised_key(raw)
            # Two raw keys may have the same normalized key: their logins stay in insertion order.
            if key is not None:
                by_key.setdefault(key, []).append(self._credential(key, login))
        self.keys = tuple(sorted(by_key, reverse=True))
        self._index = PatternIndex((key, tuple(by_key[key])) for key in self.keys)
        self._hub = tuple(by_key.get(OLD_DOCKER_HUB.encode(), ()))
        self._memo: dict[str, tuple[ImageCredential, ...]] = {}

    def _credential(self, key: bytes, login: RegistryLogin) -> ImageCredential:
        source, cached, account = self._common
        return ImageCredential(
            login.username,
            login.password,
            key.decode("utf-8", "surrogateescape"),
            source,
            cached,
            email=login.email,
            identity_token=login.identity_token,
            registry_token=login.registry_token,
            service_account=account,
            origin=self,
        )

    def matching(self, repository: str) -> tuple[ImageCredential, ...]:
        """Return the credentials whose key matches, best first."""
        credentials = self._memo.get(repository)
        if credentials is None:
            credentials = tuple(credential for under_key in self._index.find(repository) for credential in under_key)
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[repository] = credentials
        return credentials

    def find(self, repository: str) -> tuple[ImageCredential, ...]:
        """Return what the kubelet would try for *repository* if these were the only credentials."""
        return unite([self], repository)

    @property
    def for_docker_hub(self) -> tuple[ImageCredential, ...]:
        """Return those under Docker Hub's old address, which apply to its images if nothing else matches."""
        return self._hub


def unite(blocks: Sequence[Credentials], repository: str) -> tuple[ImageCredential, ...]:
    """Merge *blocks*: a longer key of a later block comes before a shorter one of an earlier block."""
    if len(blocks) == 1:
        credentials = blocks[0].matching(repository)
    else:
        # Sorting is stable, also in reverse: credentials with equal keys stay in the order of the blocks.
        every = (credential for block in blocks for credential in block.matching(repository))
        credentials = tuple(sorted(every, key=lambda credential: credential.key, reverse=True))
    if not credentials and is_default_registry(repository):
        return tuple(credential for block in blocks for credential in block.for_docker_hub)
    return credentials


def is_default_registry(image: str) -> bool:
    """Return whether *image* names no registry, or Docker Hub."""
    first, slash, _ = image.partition("/")
    if not first or not slash:
        return bool(first)
    return first in (DOCKER_HUB, OLD_DOCKER_HUB) or not ("." in first or ":" in first)


def normalised_key(raw: str) -> bytes | None:
    """Return the key without scheme and API version; None if it cannot be parsed."""
    scheme = next((scheme for scheme in _SCHEMES if raw.startswith(scheme)), "")
    try:
        address = parse_address(raw[len(scheme) :])
    except UnparsableAddress:
        return None
    path = address.path[3:] if address.path.startswith(_API_VERSIONS) else address.path
    return address.host + (b"" if path == b"/" else path)
