"""The page of service accounts. They are changed by ``ostiary accounts`` and by the API.

Called by the administration area, which has asked the policy before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.gateway.accounts.service_account import AccountState, ServiceAccount
from ostiary.gateway.accounts.service_accounts import ServiceAccounts
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.admin.frame import ACCOUNTS, SESSIONS, AdminFrame
from ostiary.gateway.login.pages.admin.listing.searches import read_values
from ostiary.gateway.login.pages.admin.listing.texts import shown
from ostiary.gateway.login.pages.admin.tables import link, moment_cell, pager, table
from ostiary.gateway.login.pages.markup import Markup
from ostiary.gateway.login.pages.messages import counted, say
from ostiary.gateway.login.pages.pieces import problem_note
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.visit import only
from ostiary.interfaces.identity import LoginRequest

ON_A_PAGE = 50
FIELDS = ("namespace",)
_COLUMNS = (
    *("admin.account", "admin.state", "admin.description", "admin.created", "admin.created_by", "admin.source"),
    "admin.action",
)
_STATES = {
    AccountState.ACTIVE: "admin.state_active",
    AccountState.DISABLED: "admin.state_disabled",
    AccountState.DELETING: "admin.state_deleting",
}


async def accounts_page(accounts: ServiceAccounts, request: LoginRequest, frame: AdminFrame) -> LoginAnswer:
    values, problem = {}, ""
    try:
        values = read_values(request, FIELDS)
    except ValueError as error:
        problem = str(error)
    after = only(request.query, "after") or ""
    page = await accounts.list(values.get("namespace", ""), after=after, limit=ON_A_PAGE)
    rows = [_row(account) for account in page.accounts]
    body = fill(
        "admin/accounts.html",
        problem=problem_note(problem),
        namespace=values.get("namespace", ""),
        table=table(counted("admin.account_count", len(rows)), _COLUMNS, rows),
        pager=pager(ACCOUNTS, values, after=after, next_after=page.after),
    )
    return frame.page(ACCOUNTS, body, status=400 if problem else 200)


def _row(account: ServiceAccount) -> Sequence[str]:
    return (
        str(account.name),
        _state(account),
        shown(account.description),
        moment_cell(account.created_at),
        shown(account.created_by),
        say("admin.source_configuration" if account.is_declared else "admin.source_api"),
        fill(
            "admin/account_sessions.html",
            url=link(SESSIONS, {"user": account.name.username}),
            name=str(account.name),
        ),
    )


def _state(account: ServiceAccount) -> Markup:
    template = "admin/tag_good.html" if account.is_active else "admin/tag_bad.html"
    return fill(template, text=say(_STATES[account.state]))
