"""One whole list of a kind, page by page, as an API server gives it. Bounded in pages, in bytes and in entries.

Called by `cluster.followed_kind`. Without a resourceVersion in the question the answer is what etcd holds now, and not
what the API server that happens to answer has seen of it so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from ostiary.errors import ProviderError
from ostiary.interfaces.admission import UpstreamAnswer
from ostiary.interfaces.upstream_abilities.following import UpstreamReader
from ostiary.plugins.rbac.cluster.known_objects import KnownObjects
from ostiary.plugins.rbac.long_work import long_work
from ostiary.plugins.rbac.policy import ObjectKey
from ostiary.wire.rbac.served import (
    BASE_PATH,
    PLURALS,
    ServedPage,
    UnreadableAnswer,
    decode_page,
    entries_of,
)

# Half of what kubectl asks for. Reading a page of so many takes a millisecond, in which no request is served.
PAGE = 250
LARGEST_PAGE = 64 * 1024 * 1024
# A server may give pages without objects, but not for ever.
MOST_EMPTY_PAGES = 10

COULD_NOT_READ = "the RBAC policy of a cluster could not be read"


class ExpiredVersion(Exception):
    """The server no longer knows what was there at that resourceVersion: everything must be listed again."""


class PolicyTooLarge(ProviderError):
    """There is more than the settings allow."""


@dataclass(slots=True)
class KindList:
    """All objects of a kind, and the version that a watch goes on from."""

    version: str = ""
    objects: KnownObjects = field(default_factory=KnownObjects)
    entries: int = 0
    unreadable: list[str] = field(default_factory=list)

    def add(self, page: ServedPage) -> int:
        """Add what is on *page*; how many entries that has."""
        # All pages are of one moment, which the first one names.
        self.version = self.version or page.resource_version
        self.unreadable += page.unreadable
        read = len(page.unreadable)
        for item in page.items:
            entries = entries_of(item)
            before = self.objects.put(ObjectKey(item.kind, item.namespace, item.name), item)
            self.entries += entries - (0 if before is None else entries_of(before))
            read += entries
        return read


async def list_kind(reader: UpstreamReader, kind: str, *, check_room: Callable[[int], None]) -> KindList:
    """Raises `ProviderError`, `UnreadableAnswer`, or `ExpiredVersion` if it took longer than the server remembers.

    *check_room* is called with the entries so far, and raises if there are too many.
    """
    listed, token, empty_pages = KindList(), "", 0
    # Of all pages, also what one of them says again: a list that repeats itself must end too.
    read = 0
    while True:
        body = await _read_page(reader, kind, token)
        # The garbage collector would look through this and the pages before, and hold everybody up. It is only off
        # while we have the turn: the next page may take the server long.
        with long_work(many=PAGE):
            page = decode_page(kind, body)
            read += listed.add(page)
        check_room(read)
        if not page.continue_token:
            return listed
        empty_pages = 0 if page.items else empty_pages + 1
        if page.continue_token == token or empty_pages > MOST_EMPTY_PAGES:
            raise UnreadableAnswer("the list does not end")
        token = page.continue_token
        # Requests come first.
        await asyncio.sleep(0)


async def read_version(reader: UpstreamReader, kind: str) -> str:
    """The version of the newest change that the cluster has made, whatever it was."""
    return decode_page(kind, await _read_page(reader, kind, "", limit=1)).resource_version


async def _read_page(reader: UpstreamReader, kind: str, token: str, limit: int = PAGE) -> bytes:
    target = f"{BASE_PATH}/{PLURALS[kind]}?limit={limit}"
    if token:
        target += f"&continue={quote(token, safe='')}"
    answer = await reader.get(target, largest=LARGEST_PAGE)
    if answer.status == 410:
        raise ExpiredVersion
    if answer.status != 200:
        raise refusal(answer, "list", kind)
    return answer.body


def refusal(answer: UpstreamAnswer, verb: str, kind: str) -> ProviderError:
    plural = PLURALS[kind]
    if answer.status == 403:
        cause = f"the gateway's credential may not {verb} {plural} there (status 403)"
        hint = "ostiary impersonation-role prints the role that the gateway needs there"
        return ProviderError(COULD_NOT_READ, cause=cause, hint=hint)
    if answer.status == 401:
        return ProviderError(COULD_NOT_READ, cause="it rejects the gateway's own credential (status 401)")
    if answer.status == 404:
        return ProviderError(COULD_NOT_READ, cause=f"it does not serve {plural} (status 404)")
    return ProviderError(COULD_NOT_READ, cause=f"it answered status {answer.status} when asked to {verb} {plural}")
