"""The contract of a request signer, and the request as it sees it.

A program gives its signer to `connect`; every adapter has each request to the cluster signed, the one that is sent
again after a 401 included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from ostiary.errors import RequestNotSigned

AddedHeaders: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RequestToSign:
    """One request, as it is about to be sent to the cluster.

    `url` is the whole address, encoded as it is sent. `headers` are the caller's, those that the connection adds
    (``Authorization``, ``Impersonate-...``) and always ``Host``; what the HTTP library adds when it writes the request,
    such as ``User-Agent``, may be missing. `content` is None for a body that is sent as it comes: see `is_streamed`.
    """

    method: str
    url: str
    # They hold the credential, and the body may be a Secret object.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    content: bytes | None = field(default=b"", repr=False)

    @property
    def is_streamed(self) -> bool:
        """Whether the body cannot be read before it is sent: a generator, a pipe, or more than fits into memory."""
        return self.content is None

    @property
    def body(self) -> bytes:
        """The body; raises `RequestNotSigned` if it is streamed, so that no body goes unsigned by accident.

        A signer that can do without the body asks `is_streamed` first.
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
        """The value of a header, several of the same name joined with commas; None if there is none."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(values) if values else None


@runtime_checkable
class RequestSigner(Protocol):
    """Adds headers to each request that goes to the cluster.

    Called for every request after the credential has been added, and again for one that is sent again, by any number
    of threads at once. What it raises reaches the caller of the HTTP client, and the request is not sent. It may wait:
    for an event loop it is called in another thread, unless it is an `AsyncRequestSigner` too.
    """

    def sign(self, request: RequestToSign) -> AddedHeaders:
        """The headers to add. ``Authorization`` takes the place of the connection's own."""


@runtime_checkable
class AsyncRequestSigner(Protocol):
    """The ability of a `RequestSigner` to sign within an event loop, asyncio's or trio's: it must not block."""

    async def sign_async(self, request: RequestToSign) -> AddedHeaders: ...
