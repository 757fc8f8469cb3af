"""Request signing: the contract of a `RequestSigner`, and merging its headers into a request.

An application passes its signer to `connect`. Every adapter has each request to the cluster signed, including the
request that is sent again after a 401.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

from ostiary.core.redaction import redact
from ostiary.core.single_flight import in_thread, wait_async
from ostiary.core.text import fits_header, printable
from ostiary.errors import OstiaryError, RequestNotSigned

AddedHeaders: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RequestToSign:
    """A request that is about to be sent to the cluster.

    `url` is the complete URL, encoded as it is sent. `headers` are the caller's, those that the connection adds
    (``Authorization``, ``Impersonate-...``) and always ``Host``. Headers that the HTTP library adds when it writes the
    request, such as ``User-Agent``, may be missing. `content` is None for a streamed body: see `is_streamed`.
    """

    method: str
    url: str
    # Excluded from the repr: headers contain the credential, and the body may be a Secret object.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    content: bytes | None = field(default=b"", repr=False)

    @property
    def is_streamed(self) -> bool:
        """Whether the body cannot be read before it is sent: a generator, a pipe, or more than fits into memory."""
        return self.content is None

    @property
    def body(self) -> bytes:
        """The body. Raises `RequestNotSigned` if it is streamed, so that no body is left unsigned by accident.

        A signer that can sign without the body checks `is_streamed` first.
        """
        if self.content is None:
            raise RequestNotSigned(
                "the request was not sent: its body cannot be signed",
                cause="the signer needs the body, and this one is streamed: it can be read only once, while it is sent",
                hint="give the HTTP client bytes, or use a signer that signs streamed requests without their body",
                code="request-body-streamed",
            )
        return self.content

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None. Several of the same name are joined with commas."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(values) if values else None


@runtime_checkable
class RequestSigner(Protocol):
    """Add headers to each request to the cluster.

    Called for every request after the credential has been added, and again for each retry, from any number of threads
    concurrently. An exception is raised to the caller of the HTTP client, and the request is not sent. It may block: in
    an event loop it runs in another thread, unless it is also an `AsyncRequestSigner`.
    """

    def sign(self, request: RequestToSign) -> AddedHeaders:
        """Return the headers to add. ``Authorization`` replaces the connection's own."""


@runtime_checkable
class AsyncRequestSigner(Protocol):
    """Capability of a `RequestSigner`: sign in an event loop (asyncio or trio). Must not block."""

    async def sign_async(self, request: RequestToSign) -> AddedHeaders: ...


# Signing of one request; `retry_on_401` calls this each time a request is sent.

Headers = Sequence[tuple[str, str]]

# The characters of a token (RFC 9110, section 5.6.2).
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Framing and hop-by-hop headers, which only the HTTP library may set.
_FRAMING = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
# Only the kubeconfig decides which user is impersonated.
_IMPERSONATION = "impersonate-"
MOST_HEADERS = 32
MOST_CHARACTERS = 32 * 1024


class SyncRequest(Protocol):
    def has(self, header: str) -> bool: ...

    def to_sign(self) -> RequestToSign: ...


class AsyncRequest(Protocol):
    def has(self, header: str) -> bool: ...

    async def to_sign(self) -> RequestToSign: ...


def signed_headers(signer: RequestSigner, request: SyncRequest, ours: Headers) -> Headers:
    """Return *ours* and the headers that *signer* adds. Raises `RequestNotSigned`."""
    shown = _with_ours(request.to_sign(), ours)
    try:
        added = signer.sign(shown)
    except OstiaryError:
        raise
    except Exception as error:
        raise _failure(signer, error) from error
    return _joined(signer, request, ours, added)


async def signed_headers_async(signer: RequestSigner, request: AsyncRequest, ours: Headers) -> Headers:
    """Like `signed_headers`, for an event loop."""
    shown = _with_ours(await request.to_sign(), ours)
    try:
        if isinstance(signer, AsyncRequestSigner):
            added = await signer.sign_async(shown)
        else:
            added = await wait_async(in_thread(partial(signer.sign, shown), name="ostiary-request-signer"))
    except OstiaryError:
        raise
    except Exception as error:
        raise _failure(signer, error) from error
    return _joined(signer, request, ours, added)


def _with_ours(request: RequestToSign, ours: Headers) -> RequestToSign:
    headers = [*request.headers, *ours]
    if not any(name.lower() == "host" for name, _ in headers):
        headers.insert(0, ("Host", _host(request.url)))
    return replace(request, headers=tuple(headers))


def _host(url: str) -> str:
    """Return the Host header as HTTP libraries write it: without the default port of the scheme."""
    parts = urlsplit(url)
    authority = parts.netloc.rpartition("@")[2]
    return authority.removesuffix({"https": ":443", "http": ":80"}.get(parts.scheme, ":"))


def _joined(signer: RequestSigner, request: SyncRequest | AsyncRequest, ours: Headers, added: AddedHeaders) -> Headers:
    headers = _checked(signer, added)
    names = {name.lower() for name, _ in headers}
    if set_by_caller := sorted(name for name in names if request.has(name)):
        raise _refusal(
            signer,
            f"it adds {', '.join(set_by_caller)}, which the caller has set on this request already",
            hint="leave the header to the signer, or the request to a connection without one",
        )
    return (*(pair for pair in ours if pair[0].lower() not in names), *headers)


def _checked(signer: RequestSigner, added: object) -> list[tuple[str, str]]:
    items: object = added.items() if isinstance(added, Mapping) else added
    if not isinstance(items, Iterable) or isinstance(items, (str, bytes)):
        raise _refusal(signer, "it returned no headers", hint="return a dict of headers, or a list of (name, value)")
    headers: list[tuple[str, str]] = []
    for pair in items:
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise _refusal(signer, "a header is not a pair of strings", hint="return names and values that are str")
        headers.append(pair)
        if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > MOST_CHARACTERS:
            raise _refusal(
                signer,
                f"it adds more than {MOST_HEADERS} headers, or more than {MOST_CHARACTERS} characters",
                hint="add only what the server needs",
            )
        _check_header(signer, *pair)
    return headers


def _check_header(signer: RequestSigner, name: str, value: str) -> None:
    # Only valid names are quoted: a value may be a secret.
    if not _NAME.fullmatch(name):
        raise _refusal(signer, "a name is not one that a header can have", hint="use letters, digits and hyphens")
    if name.lower() in _FRAMING or name.lower().startswith(_IMPERSONATION):
        raise _refusal(signer, f"a signer cannot set {name}", hint="add headers of the signature's own")
    if not (fits_header(value) and value.isascii()):
        raise _refusal(
            signer,
            f"the value of {name} holds a line break or another character that a header cannot carry",
            hint="return visible ASCII on one line",
        )


def _failure(signer: RequestSigner, error: Exception) -> RequestNotSigned:
    text = printable(redact(str(error)))
    return _refusal(
        signer,
        f"it raised {type(error).__name__}" + (f": {text}" if text else ""),
        hint="the exception that this one is caused by says where",
    )


def _refusal(signer: object, cause: str, *, hint: str) -> RequestNotSigned:
    cause = f"signer {type(signer).__name__}: {cause}"
    return RequestNotSigned("the request was not sent: it could not be signed", cause=cause, hint=hint)
