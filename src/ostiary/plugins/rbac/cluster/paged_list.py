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
from ostiary.plugins.rbac.long_work import long_work
from ostiary.plugins.rbac.policy import ObjectKey
from ostiary.wire.rbac import Binding, Role
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
PAGES_AT_A_TIME = 20
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
    objects: dict[ObjectKey, Role | Binding] = field(default_factory=dict)
    entries: int = 0
    unreadable: list[str] = field(default_factory=list)


async def list_kind(reader: UpstreamReader, kind: str, *, check_room: Callable[[int], None]) -> KindList:
    """Raises `ProviderError`, `UnreadableAnswer`, or `ExpiredVersion` if it took longer than the server remembers.

    *check_room* is called with the entries so far, and raises if there are too many.
    """
    listed, token = KindList(), ""
    while True:
        # Some pages at a time: the garbage collector would look through all that was read, and hold everybody up.
        with long_work():
            token = await _read_pages(reader, kind, listed, token, check_room)
        if not token:
            return listed


async def _read_pages(
    reader: UpstreamReader, kind: str, listed: KindList, token: str, check_room: Callable[[int], None]
) -> str:
    """Add the next pages to *listed*; the token of the one after them, empty if there is none."""
    empty_pages = 0
    for _ in range(PAGES_AT_A_TIME):
        page = await _read_page(reader, kind, token)
        # All pages are of one moment, which the first one names.
        listed.version = listed.version or page.resource_version
        for item in page.items:
            listed.objects[ObjectKey(item.kind, item.namespace, item.name)] = item
            listed.entries += entries_of(item)
        listed.unreadable += page.unreadable
        check_room(listed.entries + len(listed.unreadable))
        if not page.continue_token:
            return ""
        empty_pages = 0 if page.items else empty_pages + 1
        if page.continue_token == token or empty_pages > MOST_EMPTY_PAGES:
            raise UnreadableAnswer("the list does not end")
        token = page.continue_token
        # Requests come first.
        await asyncio.sleep(0)
    return token


async def read_version(reader: UpstreamReader, kind: str) -> str:
    """The version of the newest change that the cluster has made, whatever it was."""
    return (await _read_page(reader, kind, "", limit=1)).resource_version


async def _read_page(reader: UpstreamReader, kind: str, token: str, limit: int = PAGE) -> ServedPage:
    target = f"{BASE_PATH}/{PLURALS[kind]}?limit={limit}"
    if token:
        target += f"&continue={quote(token, safe='')}"
    answer = await reader.get(target, largest=LARGEST_PAGE)
    if answer.status == 410:
        raise ExpiredVersion
    if answer.status != 200:
        raise refusal(answer, "list", kind)
    return decode_page(kind, answer.body)


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
