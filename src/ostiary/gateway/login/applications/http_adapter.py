"""Between the engine and the sign-in for web applications: leads a browser to the sign-in page, and shows refusals.

Called by the engine for a browser that opens a page of an application and has no session there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.counting.rates import Buckets
from ostiary.errors import OstiaryError
from ostiary.gateway.audit.source_ips import Network, source_ips
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.applications.sign_ins import LONGEST_TARGET, ApplicationSignIns
from ostiary.gateway.login.pages import views
from ostiary.gateway.login.pages.readers import Readers
from ostiary.gateway.login.visit import AddressLimit
from ostiary.gateway.look.look import DEFAULT_LOOK, Look
from ostiary.gateway.request.browsers.pages import PageAnswer
from ostiary.gateway.request.stages import Passage
from ostiary.gateway.upstream.applications import Applications
from ostiary.gateway.upstream.upstreams import Upstream
from ostiary.interfaces.identity import LoginRequest, RequiredAuthentication

# Pages that one address opens without a session. Each is a record in the store for ten minutes.
STARTS_PER_MINUTE = 120.0


class ApplicationPages:
    """Implements `ostiary.gateway.request.browsers.pages.BrowserPages`."""

    def __init__(
        self,
        applications: Applications,
        sign_ins: ApplicationSignIns,
        starts: Buckets,
        trusted_proxies: Sequence[Network] = (),
        *,
        look: Look = DEFAULT_LOOK,
    ) -> None:
        self._applications = applications
        self._sign_ins = sign_ins
        self._starts = AddressLimit(starts)
        self._readers = Readers(look.for_other_proxies(), secure=applications.secure)
        self._trusted = trusted_proxies

    async def begin_sign_in(
        self, passage: Passage, upstream: Upstream, *, target: str, required: RequiredAuthentication | None = None
    ) -> PageAnswer:
        host = passage.exchange.request.host.decode("latin-1")
        request = self._request(passage)
        if wait := self._starts.wait(request):
            return self._page(request, passage, answers.too_many(wait), upstream.settings.prefix)
        if len(target) > LONGEST_TARGET:
            target = upstream.settings.prefix
        try:
            request_id, cookie = await self._sign_ins.begin(
                request,
                application=upstream.name,
                origin=self._applications.origin(host),
                target=target,
                required=required,
            )
        except OstiaryError:
            return self._page(request, passage, answers.outage(503), upstream.settings.prefix)
        url = f"{self._applications.external_url}/auth/application?request={request_id}"
        return _encode(answers.redirect(url, 303).with_headers(cookie, ("Vary", "Accept, Cookie, Sec-Fetch-Mode")))

    def refusal(self, passage: Passage, code: int, message: str, front: str, advice: str = "") -> PageAnswer:
        return self._page(self._request(passage), passage, answers.error(code, message), front, advice)

    def _page(
        self, request: LoginRequest, passage: Passage, answer: LoginAnswer, front: str, advice: str = ""
    ) -> PageAnswer:
        # The address is the application's own: a parameter for the language would go to it.
        with self._readers.reading(request, linked=False):
            return _encode(views.application_error(answer, passage.audit_id, front=front, advice=advice))

    def _request(self, passage: Passage) -> LoginRequest:
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in passage.exchange.request.headers
        )
        forwarded = [line.decode("latin-1") for line in passage.scanned.forwarded_for]
        remote = passage.exchange.connection.remote_address
        address = source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]
        return LoginRequest("GET", "/auth/application", headers=headers, remote_address=address)


def _encode(answer: LoginAnswer) -> PageAnswer:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    return PageAnswer(answer.status, headers, answer.body)
