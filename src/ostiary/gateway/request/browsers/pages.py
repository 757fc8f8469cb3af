"""What the engine needs of the sign-in for browsers: a way to the sign-in page, and pages for refusals.

`gateway.login.applications` implements it; the engine is given it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ostiary.gateway.http1.headers import Headers
from ostiary.gateway.request.stages import Passage
from ostiary.gateway.upstream.upstreams import Upstream
from ostiary.interfaces.identity import RequiredAuthentication


class PageAnswer(NamedTuple):
    """A page, or a redirect to one."""

    code: int
    headers: Headers
    body: bytes


class BrowserPages(Protocol):
    async def begin_sign_in(
        self, passage: Passage, upstream: Upstream, *, target: str, required: RequiredAuthentication | None = None
    ) -> PageAnswer:
        """Lead the browser to the sign-in page, and later back to *target*: path and query at the same host.

        *required* is what the person must prove there, though they are signed in.
        """

    def refusal(self, passage: Passage, code: int, message: str, front: str, advice: str = "") -> PageAnswer:
        """A page that says why there is nothing to see, and leads to *front*, where the application begins.

        *advice* says what to do about it, where the permissions of the person are not the reason.
        """
