"""Attribute mappers: what does this request ask for?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ostiary.model import RequestInfo


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What a request's first line and headers say that matters for a decision.

    `path` and `query` are the text that is sent upstream, not decoded. The gateway has refused every path that two
    programs could read differently (dot segments, empty segments, encoded slashes), so a mapper may split it at
    each slash. `upgrade` is the lower-case protocol that the connection shall switch to, such as ``websocket``.
    """

    method: str
    path: str
    query: str = ""
    upgrade: str = ""


class AttributesMapper(Protocol):
    """Turns a request into what authorization providers decide on. Pure and quick: it is called for every request.

    An API of one's own defines here what its paths and modifiers mean (WATCH, RESTART, PROXY). Raise `ValueError`
    for a request that cannot be understood: it is refused, never guessed.
    """

    def request_info(self, line: RequestLine) -> RequestInfo: ...

    def long_running(self, info: RequestInfo) -> bool:
        """Whether the answer may take as long as it likes: a watch, a log that is followed, a terminal."""


@runtime_checkable
class RequiresMore(Protocol):
    """A mapper that knows requests for which one permission is not enough."""

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """What else must be allowed for *info* to be, if anything."""


@runtime_checkable
class SplitsNames(Protocol):
    """A mapper that knows which part of a request line is the name of an object, and nothing but that.

    What the gateway has worked out for one object, it uses again for others where no policy looks at names. Called for
    every request line that did not come before, so it must be quick.
    """

    def split_name(self, path: str, query: str) -> tuple[str, str, str] | None:
        """What stands before the name, the name, and what stands after it; None if that cannot be told for certain.

        Lines with the same method and equal parts before and after it must ask for the same: `request_info` may differ
        in `name` and `path` only, and `path` is then the one given here. Whatever else the mapper says about a request
        may not depend on these two. The name is empty where all objects of a kind are meant, and has small letters,
        digits, dashes and dots only. Where parameters of the query differ only in a number that means nothing for a
        decision, what stands after the name may be equal nevertheless.

        Another name of one to 253 of these characters, the first and the last of which is a letter or a digit, must be
        split from the same place in the same way. If what stands after it is equal for two values of a parameter, both
        of one to 18 digits, it must be so for all of them. The gateway relies on both, and does not ask again.
        """


@dataclass(frozen=True, slots=True)
class RequestContent:
    """The body of a request, and the headers that say how it is to be read."""

    content_types: tuple[str, ...]
    content_encodings: tuple[str, ...]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ObjectCapabilities:
    """What the object in a request asks for, as in ``privileged``. `doubt` says why it may ask for any of them."""

    names: tuple[str, ...]
    doubt: str = ""


@runtime_checkable
class ReadsCapabilities(Protocol):
    """A mapper that knows from the object in a request which capabilities it asks for (`RequestInfo.capabilities`).

    `in_body_of` is called for each new request line, and must be quick; only for what it says yes to the body is read.
    A body beyond `largest_body` bytes, or one that nobody shows the gateway, is in doubt. So must be whatever could be
    read in two ways: a request in doubt has all capabilities. `reads_bodies`: whether it is configured to do so at all.
    """

    largest_body: int
    reads_bodies: bool

    def in_body_of(self, info: RequestInfo) -> bool:
        """Whether the body of such a request says which capabilities it asks for."""

    def capabilities_of(self, info: RequestInfo, content: RequestContent) -> ObjectCapabilities:
        """Never raises: what cannot be read is in doubt."""

    def in_doubt(self, info: RequestInfo, doubt: str) -> ObjectCapabilities:
        """All capabilities that such a request could ask for."""


@runtime_checkable
class ReadsKubernetesPaths(Protocol):
    """A trait: the mapper reads paths, verbs and resources as kube-apiserver does.

    The gateway then treats the upstream as a Kubernetes API: the mapper gets paths without the upstream's prefix,
    reviews about oneself are answered from the gateway's own policy, and a 401 is about the gateway's credential. Of a
    mapper without it nothing of that is assumed: the policy sees whole paths, and the upstream answers for itself.
    """

    reads_kubernetes_paths: bool
