"""Attribute mappers: derive the authorization attributes of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ostiary.model import RequestInfo


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The parts of a request's first line and headers that matter for authorization.

    `path` and `query` are the undecoded text that is sent upstream. The gateway rejects every path that two
    implementations could parse differently (dot segments, empty segments, encoded slashes), so a mapper may split it at
    each slash. `upgrade` is the lower-case protocol to switch to, such as ``websocket``.
    """

    method: str
    path: str
    query: str = ""
    upgrade: str = ""


class AttributesMapper(Protocol):
    """Map a request to the attributes that authorization providers decide on.

    Pure and fast: it is called for every request. The mapper of a custom API defines the meaning of its paths and
    modifiers (WATCH, RESTART, PROXY). Raise `ValueError` for a request that cannot be parsed: it is rejected, never
    guessed.
    """

    def request_info(self, line: RequestLine) -> RequestInfo: ...

    def long_running(self, info: RequestInfo) -> bool:
        """Whether the response may take arbitrarily long: a watch, a followed log, a terminal."""


@runtime_checkable
class RequiresMore(Protocol):
    """A mapper that knows requests for which one permission is not enough."""

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """Return what else must be allowed for *info*, if anything."""


@runtime_checkable
class SplitsNames(Protocol):
    """A mapper that can separate the name of an object from the rest of a request line.

    The gateway then reuses cached results of one object for others where no policy depends on names. Called for every
    request line that is not cached, so it must be fast.
    """

    def split_name(self, path: str, query: str) -> tuple[str, str, str] | None:
        """Return the text before the name, the name, and the text after it; None if that is ambiguous.

        Lines with the same method and equal parts before and after the name must have the same meaning: `request_info`
        may differ in `name` and `path` only, and `path` is then the *path* given here. No other result of the mapper
        may depend on these two. The name is empty if all objects of a kind are addressed, and consists of lower-case
        letters, digits, dashes and dots. Query parameters that differ only in a number without meaning for
        authorization may yield equal text after the name.

        Another name of 1 to 253 of these characters that begins and ends with a letter or a digit must be split at the
        same position in the same way. If the text after the name is equal for two values of a parameter, both of 1 to
        18 digits, it must be equal for all of them. The gateway relies on both without calling again.
        """


@dataclass(frozen=True, slots=True)
class RequestContent:
    """The body of a request, and the headers that describe its encoding."""

    content_types: tuple[str, ...]
    content_encodings: tuple[str, ...]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ObjectCapabilities:
    """Capabilities that the object in a request uses, as in ``privileged``. `doubt` says why it may use any of them."""

    names: tuple[str, ...]
    doubt: str = ""


@runtime_checkable
class ReadsCapabilities(Protocol):
    """A mapper that reads from the object in a request which capabilities it uses (`RequestInfo.capabilities`).

    `in_body_of` is called for each new request line, and must be fast; the body is read only if it returns True. A body
    is in doubt if it has more than `largest_body` bytes, is not available to the gateway, or can be parsed in two ways.
    A request in doubt has all capabilities. `reads_bodies` says whether the feature is enabled.
    """

    largest_body: int
    reads_bodies: bool

    def in_body_of(self, info: RequestInfo) -> bool:
        """Whether the body of such a request determines its capabilities."""

    def capabilities_of(self, info: RequestInfo, content: RequestContent) -> ObjectCapabilities:
        """Read the capabilities from *content*. Never raises: what cannot be parsed is in doubt."""

    def in_doubt(self, info: RequestInfo, doubt: str) -> ObjectCapabilities:
        """Return all capabilities that such a request could have."""


@runtime_checkable
class ReadsKubernetesPaths(Protocol):
    """Declares that the mapper reads paths, verbs and resources as kube-apiserver does.

    The gateway then treats the upstream as a Kubernetes API: the mapper receives paths without the upstream's prefix,
    self reviews are evaluated with the gateway's own policy, and a 401 concerns the gateway's credential. Otherwise
    none of this applies: the policy sees complete paths, and responses are forwarded as they are.
    """

    reads_kubernetes_paths: bool
