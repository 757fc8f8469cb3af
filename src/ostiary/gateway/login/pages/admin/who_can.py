"""The page that tells whom the policy allows something: values in, page out.

Called by the administration area, which has asked the policy before.
"""

from __future__ import annotations

from ostiary.gateway.authorize.chain import Authorizer, WhoCan
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.admin.frame import WHO_CAN, AdminFrame
from ostiary.gateway.login.pages.admin.listing.texts import shown
from ostiary.gateway.login.pages.admin.tables import table
from ostiary.gateway.login.pages.markup import NOTHING, Markup
from ostiary.gateway.login.pages.messages import counted, say
from ostiary.gateway.login.pages.pieces import problem_note
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.visit import only
from ostiary.interfaces.identity import LoginRequest
from ostiary.model import Attributes, UserInfo
from ostiary.wire.ostiary_dev.operators import decode_subject_search

_ASKED = ("verb", "group", "resource", "namespace", "name", "path")
_COLUMNS = ("admin.subject", "admin.kind", "admin.via")


def who_can_page(authorizer: Authorizer, request: LoginRequest, frame: AdminFrame) -> LoginAnswer:
    values = {name: only(request.query, name) or "" for name in _ASKED}
    problem, result = NOTHING, NOTHING
    if any(values.values()):
        try:
            result = _search_result(authorizer.who_can(Attributes(UserInfo(""), decode_subject_search(values))))
        except ValueError as error:
            problem = problem_note(str(error))
    return frame.page(WHO_CAN, fill("admin/who_can.html", problem=problem, found=result, **values))


def _search_result(search: WhoCan) -> Markup:
    rows = [
        (
            shown(f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name),
            shown(subject.kind),
            shown(subject.via),
        )
        for subject in search.subjects
    ]
    unknown = NOTHING
    if search.unknown:
        unknown = fill("problem.html", text=say("admin.cannot_list", names=", ".join(search.unknown)))
    found = table(counted("admin.subject_count", len(rows)), _COLUMNS, rows)
    return fill("admin/found.html", table=found, unknown=unknown)
