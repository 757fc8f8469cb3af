"""Exports of what the pages list, as CSV and as JSON: sent piece by piece, and bounded.

Called by the administration area, which has asked the policy before: whoever may see a page may export it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import UTC, datetime

from ostiary.gateway.accounts.service_accounts import ServiceAccounts
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import COMMON, LoginAnswer
from ostiary.gateway.login.pages.admin import accounts, sessions
from ostiary.gateway.login.pages.admin.listing.decided import DecidedRequest
from ostiary.gateway.login.pages.admin.listing.formats import FORMATS, Row
from ostiary.gateway.login.pages.admin.listing.searches import SESSION_FIELDS, SessionSearch, read_values
from ostiary.gateway.login.pages.admin.listing.session_lists import SessionLists
from ostiary.gateway.login.pages.admin.requests import RequestListing
from ostiary.interfaces.identity import LoginRequest

MOST_ROWS = 20_000
# At the same time, of this worker.
MOST_EXPORTS = 4

Pieces = Callable[[], AsyncGenerator[Iterable[Row]]]


class Exports:
    def __init__(self, lists: SessionLists, service_accounts: ServiceAccounts | None) -> None:
        self._lists = lists
        self._accounts = service_accounts
        self._running = 0

    def sessions(self, request: LoginRequest, extension: str, *, now: datetime) -> LoginAnswer:
        try:
            search = SessionSearch(read_values(request, SESSION_FIELDS))
        except ValueError as error:
            return answers.error(400, str(error))

        async def pieces() -> AsyncGenerator[Iterable[Row]]:
            async for piece in self._lists.all(search, most=MOST_ROWS):
                yield [sessions.session_fields(session) for session in piece]

        return self._download("sessions", "SessionList", sessions.EXPORTED, pieces, extension, now)

    def accounts(self, request: LoginRequest, extension: str, *, now: datetime) -> LoginAnswer:
        service_accounts = self._accounts
        try:
            namespace = read_values(request, accounts.FIELDS).get("namespace", "")
        except ValueError as error:
            return answers.error(400, str(error))

        async def pieces() -> AsyncGenerator[Iterable[Row]]:
            if service_accounts is not None:
                async for piece in accounts.all_accounts(service_accounts, namespace, most=MOST_ROWS):
                    yield [accounts.account_fields(account) for account in piece]

        return self._download("accounts", "ServiceAccountList", accounts.EXPORTED, pieces, extension, now)

    def requests(
        self, name: str, listing: RequestListing, requests: Sequence[DecidedRequest], extension: str, *, now: datetime
    ) -> LoginAnswer:
        if listing.problem:
            return answers.error(400, listing.problem)
        selected = listing.select(requests)

        async def pieces() -> AsyncGenerator[Iterable[Row]]:
            yield [request.fields() for request in selected]

        return self._download(name, "DecisionList", DecidedRequest.COLUMNS, pieces, extension, now)

    def _download(
        self, name: str, kind: str, columns: Sequence[str], pieces: Pieces, extension: str, now: datetime
    ) -> LoginAnswer:
        if self._running >= MOST_EXPORTS:
            return answers.error(429, "too many exports are being made: try again in a moment").with_headers(
                ("Retry-After", "5")
            )
        form = FORMATS[extension](kind, columns)

        async def stream() -> AsyncGenerator[bytes]:
            # Here, and not before: whether anybody reads it is not known yet.
            self._running += 1
            try:
                yield form.head()
                async for rows in pieces():
                    yield form.rows(rows)
                yield form.foot()
            finally:
                self._running -= 1

        filename = f"{name}-{now.astimezone(UTC).strftime('%Y%m%dT%H%M%SZ')}.{extension}"
        disposition = ("Content-Disposition", f'attachment; filename="{filename}"')
        return LoginAnswer(200, (("Content-Type", form.content_type), disposition, *COMMON), stream=stream)
