"""Registry of the replicas in the token store: publishes this replica's state, and reads the state of the others.

    gather (all workers)  ->  merge  ->  Replica  ->  a message in the store     every few seconds
    messages of all replicas  ->  compare  ->  log, metrics, ``ostiary-gateway status``, the page

With a store without `NoteStore`, a replica sees only itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ostiary import __version__
from ostiary.core.clock import Clock
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.core.yaml import MAX_BYTES, Json
from ostiary.errors import OstiaryError, ProviderError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.file_checks import named_files
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces import VERSION as INTERFACES_VERSION
from ostiary_gateway.interfaces.store_capabilities import NoteStore
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.replicas.drift import Configuration, Heard, SeenReplica, compare
from ostiary_gateway.replicas.replica import Replica, ReplicaIdentity, decode_replica, encode_replica
from ostiary_gateway.replicas.workers import RequestRate, WorkerState, merge_states
from ostiary_gateway.settings.kinds import Holds

# Settings that may differ between machines: where a replica listens, and with how many processes.
OF_THE_MACHINE = {"listen": ("address", "workers"), "health": ("address",)}
READ = frozenset({Holds.POLICY, Holds.ANYTHING})
HASH_DIGITS = 12

Look = dict[Path, Fingerprint | None]


class ConfigurationDigest:
    """Digest of a configuration: the document and the contents of the policy files that it names.

        document without settings of the machine  +  contents of the policy files  ->  digest  ->  keyed hash

    Comments and the order of keys do not change it. Certificates, keys and secrets are not read, because replicas may
    have their own, which are renewed at different times. A replica publishes only `keyed_hash`: with the digest, a
    reader could guess a short password in the document. Not thread-safe.
    """

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
        """Return the current digest. The policy files are read again only when one of them has changed."""
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
    """Return the canonical JSON of the document without the settings of the machine."""
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
    """Yield the file, or the files of the policy directory. Hidden files belong to the mount."""
    try:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if not file.name.startswith("."))
            return
    except OSError:
        pass
    yield path


def _content(file: Path) -> bytes:
    # The provider of the policy reports an unreadable file. Here it only counts as different content.
    try:
        if not file.is_file():
            return b""
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES)
    except OSError:
        return b""


def keyed_hash(key: bytes, digest: str) -> str:
    """Return the public form of a digest. Without the key, the configuration cannot be guessed from it."""
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()[:HASH_DIGITS]


def key_name(key: bytes) -> str:
    """Return the fingerprint of a key, by which replicas recognise hashes made with the same key."""
    return hashlib.sha256(b"name of the key\0" + key).hexdigest()[:8]


TOPIC = "replicas"
PUBLISH_SECONDS = 3.0
# A replica that has not published for this long counts as silent. It is still listed until `SHOWN_SECONDS`, so that an
# operator notices a crash.
SILENT_SECONDS = 3 * PUBLISH_SECONDS
SHOWN_SECONDS = 60.0
MOST_REPLICAS = 1000
# The key of the configuration hashes is stored in the token store. If it is lost, a replica generates a new one.
KEY_TOPIC = "configuration key"
KEY_BYTES = 32
KEY_SECONDS = 30 * 86400.0
# `leave` must not delay the shutdown of a replica.
LEAVE_SECONDS = 2.0

log = logging.getLogger("ostiary.gateway")

# Queries the state of every worker of this replica; None for one that does not respond.
Gather = Callable[[], Awaitable[Sequence[WorkerState | None]]]


class ReplicaRegistry:
    """Publishes the state of this replica. Runs once per replica: in the supervisor, or in the only worker.

    *on_seen* is called with all replicas after each read.
    """

    def __init__(
        self,
        identity: ReplicaIdentity,
        store: TokenStore,
        gather: Gather,
        *,
        clock: Clock,
        max_stale: float,
        on_seen: Callable[[Sequence[SeenReplica]], None] = lambda seen: None,
    ) -> None:
        self._identity = identity
        self._store = store
        self._notes = ability(store, NoteStore)
        self._gather = gather
        self._clock = clock
        self._max_stale = max_stale
        self._on_seen = on_seen
        self._since = clock.monotonic()
        self._rate = RequestRate()
        self._differences = Differences(identity.id)
        # Placeholder: with a `NoteStore`, `publish` replaces it by the shared key; without, nothing is compared.
        self._key = secrets.token_bytes(KEY_BYTES)
        self._left = False

    async def run(self) -> None:
        """Publish until cancelled; only once if the store has no messages for replicas."""
        while True:
            try:
                await self.publish()
            except ProviderError as error:
                # Other components report the outage of the store.
                log.debug("the other replicas were not told of this one", extra={"cause": error.cause})
            if self._notes is None:
                await asyncio.Event().wait()
            await asyncio.sleep(PUBLISH_SECONDS)

    async def publish(self) -> None:
        """Write the state of this replica and read the others. Raises `ProviderError` if the store is unavailable."""
        if self._notes is not None:
            self._key = await _shared_key(self._notes)
        states = await self._gather()
        self._rate.update(states, self._clock.monotonic())
        own = await self._replica(states)
        if self._notes is None:
            self._on_seen(compare([Heard(own)]))
            return
        if not self._left:
            await self._notes.put_notes(TOPIC, {own.id: encode_replica(own)}, seconds=SHOWN_SECONDS)
        replicas = await read_replicas(self._notes)
        self._differences.report(replicas)
        self._on_seen(replicas)

    async def own(self) -> Replica:
        """Return the current state of this replica."""
        states = await self._gather()
        if self._notes is None:
            # Without regular publishing, the request rate is measured between two calls.
            self._rate.update(states, self._clock.monotonic())
        return await self._replica(states)

    async def leave(self) -> None:
        """Remove this replica from the list when it stops. If that fails, it becomes silent and then expires."""
        self._left = True
        if self._notes is not None:
            with suppress(OstiaryError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._notes.remove_note(TOPIC, self._identity.id)

    async def _replica(self, states: Sequence[WorkerState | None]) -> Replica:
        figures, identity = merge_states(states), self._identity
        return Replica(
            id=identity.id,
            host=identity.host,
            pid=identity.pid,
            version=__version__,
            interfaces=INTERFACES_VERSION,
            configuration=keyed_hash(self._key, figures.configuration) if figures.configuration else "",
            configuration_key=key_name(self._key),
            configured_seconds=round(figures.configured_seconds, 1),
            up_seconds=round(self._clock.monotonic() - self._since, 1),
            revocation=figures.revocation,
            head=await self._head(),
            confirmed_seconds=round(figures.confirmed_seconds, 1),
            max_stale=self._max_stale,
            requests_per_second=self._rate.per_second,
            in_flight=figures.in_flight,
            open_streams=figures.open_streams,
            tokens=figures.tokens,
            workers=figures.workers,
            trouble=figures.trouble,
        )

    async def _head(self) -> int | None:
        try:
            return (await self._store.revocations_after(None)).head
        except OstiaryError:
            return None


class Replicas:
    """All replicas, for the API and the pages of any worker. *own* returns this replica without using the store."""

    def __init__(self, store: TokenStore, own: Callable[[], Awaitable[Replica | None]]) -> None:
        self._notes = ability(store, NoteStore)
        self._own = own

    async def all(self) -> list[SeenReplica]:
        """Return all replicas. Raises `ProviderError` if the store is unavailable."""
        own = await self._own()
        by_id = {} if self._notes is None else {each.replica.id: each for each in await _read_heard(self._notes)}
        if own is not None:
            by_id[own.id] = Heard(own)
        return compare(list(by_id.values()))


async def read_replicas(notes: NoteStore) -> list[SeenReplica]:
    """Return all replicas that have written a message recently."""
    return compare(await _read_heard(notes))


async def _read_heard(notes: NoteStore) -> list[Heard]:
    latest = await notes.latest_notes(TOPIC, MOST_REPLICAS)
    # Use only the store's clock, because the clocks of machines differ. The newest message counts as the current time.
    now = max((note.written_at for note in latest), default=None)
    replicas = []
    for note in latest:
        replica = decode_replica(note.data)
        if replica is not None and now is not None:
            age = (now - note.written_at).total_seconds()
            replicas.append(Heard(replica, age if age > SILENT_SECONDS else 0.0))
    return replicas


async def _shared_key(notes: NoteStore) -> bytes:
    """Return the key that all replicas hash with, and create it if there is none.

    If two replicas create one concurrently, the later one wins, and the other replica reads it with its next publish.
    """
    note = await notes.find_note(KEY_TOPIC, "")
    if note is None or len(note.data) != KEY_BYTES:
        await notes.put_notes(KEY_TOPIC, {"": secrets.token_bytes(KEY_BYTES)}, seconds=KEY_SECONDS)
        note = await notes.find_note(KEY_TOPIC, "")
    return note.data if note is not None else secrets.token_bytes(KEY_BYTES)


class Differences:
    """Logs, once per change, which replicas have another configuration than this one."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._reported: frozenset[tuple[str, str]] = frozenset()

    def report(self, seen: Sequence[SeenReplica]) -> None:
        own = next((each.replica for each in seen if each.replica.id == self._own_id), None)
        if own is None:
            return
        others = frozenset(
            (each.name, each.replica.configuration)
            for each in seen
            if each.configuration is not Configuration.UNKNOWN
            and each.replica.configuration_key == own.configuration_key
            and each.replica.configuration != own.configuration
            and not each.silent_seconds
        )
        if others == self._reported:
            return
        self._reported = others
        if not others:
            log.info("all replicas have the same configuration", extra={"configuration": own.configuration})
            return
        extra = {
            "configuration": own.configuration,
            "others": ", ".join(f"{name} ({configuration})" for name, configuration in sorted(others)),
            "hint": "expected while an update is rolled out; otherwise give all replicas the same files",
        }
        log.warning("other replicas have another configuration than this one", extra=extra)
