"""Record who created which object, for limits per user and group: the object itself does not show it.

    before a creation is forwarded    an intent: which user is about to create what, under which name
    after it                          the owner of the object, by its uid; the intent is deleted

Stored durably in the token store. If the gateway dies in between, or the response is lost, the intent stays. The next
list assigns a matching object without an owner to the user of the intent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.providers.object_quota.listing import Document
from ostiary_gateway.providers.object_quota.subjects import ObjectOwner

KIND = "object-quota"
# Maximum clock difference between machines.
SLACK = timedelta(minutes=5)
# Intents without a matching object, and owners whose object is in no list, are deleted after this time.
FORGOTTEN = timedelta(minutes=15)
PAGE = 1000
# Maximum length of the prefix in a generated name: k8s.io/apiserver/pkg/storage/names/generate.go
LONGEST_PREFIX = 58
_INTENT = "intent"


@dataclass(frozen=True, slots=True)
class Intent:
    """A user is about to create an object. `name` is its name, or a prefix of it if `is_prefix` is set."""

    key: str
    owner: ObjectOwner
    resource: str
    namespace: str
    name: str
    is_prefix: bool
    at: datetime

    def fits(self, resource: str, document: Document) -> bool:
        metadata = document.get("metadata")
        if not isinstance(metadata, dict) or self.resource != resource:
            return False
        name = str(metadata.get("name", ""))
        is_named = name.startswith(self.name) if self.is_prefix else name == self.name
        return is_named and str(metadata.get("namespace", "")) == self.namespace and self._is_later(metadata)

    def _is_later(self, metadata: Document) -> bool:
        try:
            created_at = datetime.fromisoformat(str(metadata.get("creationTimestamp")))
        except ValueError:
            return True
        return created_at.replace(tzinfo=created_at.tzinfo or UTC) >= self.at - SLACK


@dataclass(slots=True)
class Ledger:
    """All owners and intents for one upstream at one time."""

    owners: dict[str, ObjectOwner] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)
    # When each owner was recorded.
    written_at: dict[str, datetime] = field(default_factory=dict)


class Owners:
    """The owners of the objects that one provider counts."""

    def __init__(self, name: str, clock: Clock, groups: frozenset[str]) -> None:
        self._name = name
        self._clock = clock
        self._groups = groups

    async def intend(
        self,
        store: ObjectStore | None,
        upstream: str,
        owner: ObjectOwner,
        resource: str,
        namespace: str,
        document: Document,
    ) -> Intent:
        """Record that *owner* is about to create *document*. Raises `ProviderError`."""
        metadata = document.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        prefix = str(metadata.get("generateName") or "")[:LONGEST_PREFIX]
        name = str(metadata.get("name") or "")
        # A client may send both. Then the name counts, and the prefix is ignored.
        is_prefix = bool(prefix) and name.startswith(prefix)
        if is_prefix:
            # A dry run generates another name than the actual creation.
            name = prefix
        object_owner = ObjectOwner(owner.username, tuple(sorted(self._groups.intersection(owner.groups))))
        key = f"{self._prefix(upstream)}{_INTENT}/{secrets.token_hex(16)}"
        intent = Intent(key, object_owner, resource, namespace, name, is_prefix, self._clock.now())
        await _store(store).put_object(KIND, key, _intent_json(intent), version=0)
        return intent

    async def keep(self, store: ObjectStore | None, upstream: str, intent: Intent, uid: str) -> None:
        """Record the owner of the created object, and delete *intent*."""
        await self._put_owner(_store(store), upstream, intent, uid)
        await self.drop(store, intent)

    async def drop(self, store: ObjectStore | None, intent: Intent) -> None:
        """Delete *intent*: its object was not created."""
        await _store(store).delete_object(KIND, intent.key)

    async def find(self, store: ObjectStore | None, upstream: str, document: Document) -> ObjectOwner | None:
        """Return the owner of *document*, or None if unknown."""
        stored = await _store(store).find_object(KIND, self._prefix(upstream) + uid_of(document))
        return None if stored is None else _owner(json.loads(stored.data))

    async def ledger(self, store: ObjectStore | None, upstream: str) -> Ledger:
        """Read all owners and intents. Raises `ProviderError`."""
        ledger, prefix = Ledger(), self._prefix(upstream)
        after = prefix
        while True:
            page = await _store(store).list_objects(KIND, after=after, limit=PAGE)
            for stored in page:
                if not stored.name.startswith(prefix):
                    return ledger
                fields = json.loads(stored.data)
                if stored.name.startswith(f"{prefix}{_INTENT}/"):
                    ledger.intents.append(_intent(stored.name, fields))
                else:
                    uid = stored.name[len(prefix) :]
                    ledger.owners[uid] = _owner(fields)
                    ledger.written_at[uid] = stored.changed_at
            if len(page) < PAGE:
                return ledger
            after = page[-1].name

    async def owner_of(
        self, store: ObjectStore | None, upstream: str, ledger: Ledger, resource: str, document: Document
    ) -> ObjectOwner | None:
        """Return the owner of *document*. Turns an intent that matches it into its owner."""
        uid = uid_of(document)
        owner = ledger.owners.get(uid)
        if owner is not None or not uid:
            return owner
        intent = next((each for each in ledger.intents if each.fits(resource, document)), None)
        if intent is None:
            return None
        ledger.intents.remove(intent)
        await self.keep(store, upstream, intent, uid)
        return intent.owner

    async def forget(self, store: ObjectStore | None, upstream: str, ledger: Ledger, present: Iterable[str]) -> None:
        """Delete owners of objects that are not in *present*, the uids of all existing objects, and old intents."""
        now = self._clock.now()
        for uid in ledger.owners.keys() - set(present):
            if ledger.written_at[uid] < now - FORGOTTEN:
                await _store(store).delete_object(KIND, self._prefix(upstream) + uid)
        for intent in ledger.intents:
            if intent.at < now - FORGOTTEN:
                await self.drop(store, intent)

    def _prefix(self, upstream: str) -> str:
        return f"{self._name}/{upstream}/"

    async def _put_owner(self, store: ObjectStore, upstream: str, intent: Intent, uid: str) -> None:
        data = json.dumps({"user": intent.owner.username, "groups": intent.owner.groups}).encode()
        await store.put_object(KIND, self._prefix(upstream) + uid, data, version=None)


def uid_of(document: Document) -> str:
    metadata = document.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""


def _store(store: ObjectStore | None) -> ObjectStore:
    if store is None:
        raise ProviderError("the quota cannot be counted", cause="the token store keeps no objects")
    return store


def _intent_json(intent: Intent) -> bytes:
    fields = {
        "user": intent.owner.username,
        "groups": intent.owner.groups,
        "resource": intent.resource,
        "namespace": intent.namespace,
        "name": intent.name,
        "isPrefix": intent.is_prefix,
        "at": intent.at.isoformat(),
    }
    return json.dumps(fields).encode()


def _intent(key: str, fields: Document) -> Intent:
    texts = [str(fields[name]) for name in ("resource", "namespace", "name")]
    at = datetime.fromisoformat(str(fields["at"]))
    return Intent(key, _owner(fields), texts[0], texts[1], texts[2], bool(fields["isPrefix"]), at)


def _owner(fields: Document) -> ObjectOwner:
    groups = fields["groups"]
    assert isinstance(groups, list), "as it was written"
    return ObjectOwner(str(fields["user"]), tuple(map(str, groups)))
