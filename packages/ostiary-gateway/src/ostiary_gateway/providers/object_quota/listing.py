"""Query the upstream: lists of objects, one object, and what a request would store.

Lists are requested page by page with the gateway's own identity, and as metadata only if just the number matters. What
a request would store is determined by a dry run as its user: the upstream reads the same bytes that it will be sent,
adds defaults, and runs its own admission. So the body is not interpreted in two ways, and nothing is added afterwards.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode

from ostiary.errors import ProviderError
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.interfaces.admission import UpstreamAnswer, UpstreamApi, WriteRequest

PAGE_OBJECTS = 250
# A list with more pages than this is an error: it would never be complete.
MOST_PAGES = 4000
DRY_RUN = "dryRun=All"
_JSON = ("Accept", "application/json")
_METADATA = ("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")

log = logging.getLogger("ostiary.gateway")

# A JSON object.
Document = dict[str, object]


class Listing:
    """The objects of the upstreams. Requests are sent as *user*, or with the gateway's own identity if it is None."""

    def __init__(self, user: UserInfo | None = None) -> None:
        self._user = user
        self._versions: dict[tuple[str, str], str] = {}

    async def objects(
        self, api: UpstreamApi, upstream: str, resource: str, namespace: str, *, content: bool
    ) -> AsyncIterator[Document]:
        """Yield every object of *resource* in *namespace*, or in all namespaces. Raises `ProviderError`."""
        path = await self._collection(api, upstream, resource, namespace)
        token = ""
        for _ in range(MOST_PAGES):
            query = urlencode({"limit": PAGE_OBJECTS, **({"continue": token} if token else {})})
            answer = await api.ask(
                upstream, f"{path}?{query}", headers=[_JSON if content else _METADATA], user=self._user
            )
            page = _document(answer, f"a list of {resource}")
            for item in _items(page):
                yield item
            token = _continue(page)
            if not token:
                return
        raise _failure(f"a list of {resource} has no end")

    async def object(self, api: UpstreamApi, upstream: str, info: RequestInfo) -> Document | None:
        """Return the current object that a request names, or None if it does not exist. Raises `ProviderError`."""
        path = _collection_path(info.api_group, info.api_version, info.resource, info.namespace)
        answer = await api.ask(upstream, f"{path}/{quote(info.name, safe='')}", headers=[_JSON], user=self._user)
        if answer.status == 404:
            return None
        return _document(answer, f"one of {info.resource}")

    async def _collection(self, api: UpstreamApi, upstream: str, resource: str, namespace: str) -> str:
        name, _, group = resource.partition(".")
        return _collection_path(group, await self._version(api, upstream, group), name, namespace)

    async def _version(self, api: UpstreamApi, upstream: str, group: str) -> str:
        if not group:
            return "v1"
        version = self._versions.get((upstream, group))
        if version is None:
            answer = await api.ask(upstream, f"/apis/{quote(group)}", headers=[_JSON], user=self._user)
            document = _document(answer, "an API group")
            preferred = document.get("preferredVersion")
            version = str(preferred.get("version", "")) if isinstance(preferred, dict) else ""
            if not version:
                raise _failure("an API group without a version")
            self._versions[upstream, group] = version
        return version


async def would_store(api: UpstreamApi, request: WriteRequest) -> UpstreamAnswer:
    """Send *request* as a dry run and return the upstream's JSON response. Raises `ProviderError` if it fails."""
    attributes = request.attributes
    separator = "&" if "?" in request.target else "?"
    answer = await api.ask(
        attributes.request.upstream,
        f"{request.target}{separator}{DRY_RUN}",
        method=attributes.request.method,
        headers=[_JSON, *request.headers],
        body=request.body or b"",
        user=attributes.user,
    )
    if answer.status >= 500:
        raise _failure(f"a dry run was answered {answer.status}")
    return answer


def is_dry_run(target: str) -> bool:
    """Whether a request is itself a dry run. Only the usual spelling counts, which every server reads the same way."""
    return DRY_RUN in target.partition("?")[2].split("&")


def read_document(body: bytes) -> Document | None:
    """Return the JSON object in *body*, or None if it is not one."""
    try:
        document = json.loads(body, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _collection_path(group: str, version: str, resource: str, namespace: str) -> str:
    root = f"/apis/{quote(group, safe='')}/{quote(version, safe='')}" if group else f"/api/{quote(version, safe='')}"
    place = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{place}/{quote(resource, safe='')}"


def _document(answer: UpstreamAnswer, what: str) -> Document:
    if answer.status != 200:
        raise _failure(f"{what} was answered {answer.status}")
    document = read_document(answer.body)
    if document is None:
        raise _failure(f"{what} is not JSON")
    return document


def _items(page: Document) -> list[Document]:
    items = page.get("items")
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _failure("a list without items")
    return items


def _continue(page: Document) -> str:
    metadata = page.get("metadata")
    token = metadata.get("continue") if isinstance(metadata, dict) else None
    return token if isinstance(token, str) else ""


def _failure(cause: str) -> ProviderError:
    return ProviderError("the upstream could not be asked what it has", cause=cause)
