"""Whether two replicas have the same configuration: a digest of the document and of the policy files that it names.

    document without what belongs to one machine  +  contents of the policy files  ->  digest  ->  keyed hash

Called by the worker for its state, and by the registry, which publishes the keyed hash. Comments and the order of keys
make no difference. Certificates, keys and secrets are not read: replicas may have their own, and those are renewed at
different times. What a replica publishes must not help anybody to guess a short password that stands in the document,
so the digest itself stays in the gateway.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ostiary.core.clock import Clock
from ostiary.core.config import MAX_BYTES, Json
from ostiary.core.settings.kinds import Holds
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.gateway.config.named_files.checks import named_files
from ostiary.gateway.config.settings import GatewayConfig

# Where a replica listens, and with how many processes, is a matter of its machine.
OF_THE_MACHINE = {"listen": ("address", "workers"), "health": ("address",)}
READ = frozenset({Holds.POLICY, Holds.ANYTHING})
HASH_DIGITS = 12

Look = dict[Path, Fingerprint | None]


class ConfigurationDigest:
    """The digest of one configuration, which follows its policy files as they change. Used from one thread."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._clock = clock
        self._look: Look | None = None
        self._digest = b""
        self._document = b""
        self._paths: tuple[tuple[str, Path], ...] = ()
        if config.document is not None:
            self._document = canonical(config.document.value)
            self._paths = tuple(
                (named_file.place.path, config.directory / Path(named_file.text).expanduser())
                for named_file in named_files(config.document)
                if named_file.holds in READ
            )

    def current(self) -> bytes:
        """The digest as of now. The files are read again only when one of them has changed."""
        files = [(place, path, file) for place, path in self._paths for file in _files_at(path)]
        look = {file: fingerprint(file) for _, _, file in files}
        if look == self._look and is_settled(look.values(), self._clock):
            return self._digest
        digest = hashlib.sha256(self._document)
        for place, path, file in files:
            name = file.name if file != path else ""
            content = _content(file)
            digest.update(f"\0{place}\0{name}\0{len(content)}\0".encode())
            digest.update(content)
        self._look, self._digest = look, digest.digest()
        return self._digest


def canonical(document: Json) -> bytes:
    """The document without what belongs to one machine, the same text for the same meaning."""
    if isinstance(document, Mapping):
        document = {key: _without(key, value) for key, value in document.items()}
        document = {key: value for key, value in document.items() if value != {}}
    return json.dumps(document, sort_keys=True, ensure_ascii=True).encode()


def _without(section: str, value: Json) -> Json:
    left_out = OF_THE_MACHINE.get(section)
    if left_out is None or not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if key not in left_out}


def _files_at(path: Path) -> Iterator[Path]:
    """The file, or the files in the directory that a policy is read from; hidden ones belong to the mount."""
    try:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if not file.name.startswith("."))
            return
    except OSError:
        pass
    yield path


def _content(file: Path) -> bytes:
    # What cannot be read its provider reports; here it is only another content.
    try:
        if not file.is_file():
            return b""
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES)
    except OSError:
        return b""


def keyed_hash(key: bytes, digest: str) -> str:
    """What others may see of a digest: nothing can be guessed from it without the key."""
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()[:HASH_DIGITS]


def key_name(key: bytes) -> str:
    """By which replicas see that their hashes were made with the same key."""
    return hashlib.sha256(b"name of the key\0" + key).hexdigest()[:8]
