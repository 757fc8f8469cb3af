"""Asks the upstream what it has: lists of objects, one object, and what a request would store.

Called by the provider and by the reconciliation. Lists are made in the gateway's own name, page by page, and without
the objects' content where only their number matters. What a request would store is asked in the name of its user, by
sending it as a dry run: the upstream reads the very bytes that it will be sent, adds defaults, and runs the admission
of its own. So nothing is read in two ways, and nothing is added behind our back.
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
# A list that has more pages than this is not read to its end: it would never be complete.
MOST_PAGES = 4000
DRY_RUN = "dryRun=All"
_JSON = ("Accept", "application/json")
_METADATA = ("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")

log = logging.getLogger("ostiary.gateway")

# A JSON object.
Document = dict[str, object]


class Listing:
    """The objects of the upstreams, for one provider. They are asked in the name of *user*, or in the gateway's own."""

    def __init__(self, user: UserInfo | None = None) -> None:
        self._user = user
        self._versions: dict[tuple[str, str], str] = {}

    async def objects(
        self, api: UpstreamApi, upstream: str, resource: str, namespace: str, *, content: bool
    ) -> AsyncIterator[Document]:
        """Every object of *resource* in *namespace*, or in all; raises `ProviderError`."""
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
        """The object that a request names, as it is now; None if there is none. Raises `ProviderError`."""
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
    """The upstream's answer to *request* as a dry run, in JSON; raises `ProviderError` if there is none."""
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
    """Whether a request asks for a dry run itself. Only the usual spelling counts, which no server reads otherwise."""
    return DRY_RUN in target.partition("?")[2].split("&")


def read_document(body: bytes) -> Document | None:
    """The JSON object in *body*, None if it is none."""
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
