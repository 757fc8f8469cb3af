"""Logins under their keys, and the ones that fit an image, in the order in which they are tried.

    raw key  ->  normalised key  ->  reverse order of the keys  ->  those that match the image

Used for every source alike: a docker config, a pull secret, a provider's answer. The rules are the kubelet's
keyring: every matching key counts, the keys in reverse byte order, so that a longer path comes first.
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
# How many images one set of credentials remembers its answer for.
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
    """Where a credential came from: the name of a provider or a helper, a file, or ``namespace/name``."""

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """What one entry of a docker config says."""

    username: str = ""
    password: Secret = NO_SECRET
    email: str = ""
    identity_token: Secret = NO_SECRET
    registry_token: Secret = NO_SECRET

    def __bool__(self) -> bool:
        return bool(self.username or self.password or self.identity_token or self.registry_token)


@dataclass(frozen=True, slots=True)
class ImageCredential:
    """A credential to try. `key` is the normalised key under which it stood.

    `service_account` is set when it was made for that account alone. `origin` is for `Keyring.report_rejected`.
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
        """What the kubelet writes into its records of pulled images, to know the credential again.

        Of an entry's tokens it knows nothing, so they are not part of it.
        """
        fields = {"username": self.username, "password": self.password.reveal(), "email": self.email}
        text = go_json({name: text for name, text in fields.items() if text})
        # Go escapes the replacement that it writes for a byte that is not UTF-8.
        return hashlib.sha256(_SURROGATE.sub(r"\\ufffd", text).encode()).hexdigest()


class Credentials:
    """The logins of one source. Never changes, so that any number of threads may ask at once."""

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
            # Two raw keys may become one: their logins stay in the order they came in.
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
        """Those whose key matches, best first."""
        credentials = self._memo.get(repository)
        if credentials is None:
            credentials = tuple(credential for under_key in self._index.find(repository) for credential in under_key)
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[repository] = credentials
        return credentials

    def find(self, repository: str) -> tuple[ImageCredential, ...]:
        """What the kubelet would try for *repository* if there were only these."""
        return unite([self], repository)

    @property
    def for_docker_hub(self) -> tuple[ImageCredential, ...]:
        """Those under Docker Hub's old address, which count for its images when nothing else matches."""
        return self._hub


def unite(blocks: Sequence[Credentials], repository: str) -> tuple[ImageCredential, ...]:
    """*blocks* as one: a longer key of a later block comes before a shorter one of an earlier block."""
    if len(blocks) == 1:
        credentials = blocks[0].matching(repository)
    else:
        # Sorting keeps the order of equal keys, also in reverse: the blocks' own order.
        every = (credential for block in blocks for credential in block.matching(repository))
        credentials = tuple(sorted(every, key=lambda credential: credential.key, reverse=True))
    if not credentials and is_default_registry(repository):
        return tuple(credential for block in blocks for credential in block.for_docker_hub)
    return credentials


def is_default_registry(image: str) -> bool:
    """Whether an image without a registry's name, or with Docker Hub's, is meant."""
    first, slash, _ = image.partition("/")
    if not first or not slash:
        return bool(first)
    return first in (DOCKER_HUB, OLD_DOCKER_HUB) or not ("." in first or ":" in first)


def normalised_key(raw: str) -> bytes | None:
    """The key without scheme and without the version of the registry's API; None if it cannot be parsed."""
    scheme = next((scheme for scheme in _SCHEMES if raw.startswith(scheme)), "")
    try:
        address = parse_address(raw[len(scheme) :])
    except UnparsableAddress:
        return None
    path = address.path[3:] if address.path.startswith(_API_VERSIONS) else address.path
    return address.host + (b"" if path == b"/" else path)
