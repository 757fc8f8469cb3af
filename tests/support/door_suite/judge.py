"""Whether the outcome of a case at a door is right: the same as the built-in proxy's, or otherwise for a reason.

Whatever the reason, some things always hold: nothing reaches an upstream but what was allowed to this user, there and
with this path; the upstream is told who the user is; and neither a token nor a secret gets there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ostiary.model import UserInfo
from tests.support import door_cases
from tests.support.door_cases import TOLD, Case, Headers
from tests.support.door_suite.outcome import HUNG_UP, Arrived, Outcome
from tests.support.door_suite.policy import EXTRA, USERS, Rules, upstream_of
from tests.support.doors import Reply

# Of a refusal, besides status and body.
COMPARED = ("WWW-Authenticate", "Cache-Control", "Content-Type", "X-Content-Type-Options", "Retry-After")
# Of those whose tokens are narrowed.
OWNERS = dict.fromkeys(("narrowed", "reader", "clerk"), "alice")


class Judge:
    """*secrets* are what no upstream may see, and *examples* the answers of the built-in proxy, by case."""

    def __init__(self, rules: Rules, secrets: tuple[str, ...], examples: Mapping[str, Reply]) -> None:
        self._rules, self._secrets, self._examples = rules, secrets, examples

    def mistake(self, door: str, case: Case, outcome: Outcome) -> str:
        """What is wrong with *outcome*; empty if nothing is."""
        reason = case.differs.get(door)
        arrived = outcome.arrived
        # Where nothing is carried, another program has read the request, and not we.
        if arrived is not None and (arrived.upstream or reason != door_cases.OWN_READING):
            if case.user not in (*USERS, *OWNERS):
                return f"{arrived.upstream} got a request without a valid token"
            user = user_of(case, impersonates=reason is None)
            claims = reason != door_cases.PASSES_CLAIM
            wrong_arrival = self._mistake_in_arrival(case, outcome.status, arrived, user, claims=claims)
            if wrong_arrival:
                return wrong_arrival
            if arrived.upstream and door not in door_cases.MIDDLEWARES and (doubt := ambiguity(arrived.headers)):
                return f"{arrived.upstream} got {doubt}"
            # A middleware serves every path.
            if arrived.upstream and door not in door_cases.MIDDLEWARES and upstream_of(arrived) != arrived.upstream:
                return f"{arrived.upstream} got {arrived.target}, which is of another upstream"
        wrong = _mistake_in_same(case, outcome, self._examples.get(case.name))
        if reason is None or not wrong:
            return wrong
        return "" if EXCUSES[reason](outcome.status) else f"answered {_shown(outcome)}, although it {reason}"

    def differs(self, door: str, case: Case, outcome: Outcome) -> bool:
        """Whether it needs a reason."""
        return bool(self.mistake(door, replace(case, differs={}), outcome))

    def _mistake_in_arrival(self, case: Case, status: int, arrived: Arrived, user: UserInfo, *, claims: bool) -> str:
        # Before HTTP/1.0 an answer had no status.
        if status not in (200, HUNG_UP):
            return f"answered {status}, and reached the upstream"
        told = (arrived.users, arrived.uid, arrived.groups, arrived.extra)
        if told != ((user.username,), user.uid, user.groups, dict(user.extra).get(EXTRA, ())):
            return f"the upstream was told {told}"
        if arrived.upstream and not self._rules.have_allowed(user.username, arrived):
            return f"{arrived.upstream} got {arrived.target[:80]!r}, which nobody allowed"
        if arrived.method != case.method:
            return f"the upstream got the method {arrived.method}"
        return self._mistake_in_headers(arrived, claims=claims)

    def _mistake_in_headers(self, arrived: Arrived, *, claims: bool) -> str:
        """Nothing that the client claimed must be there, nor its token, nor the secret of the door."""
        for name, value in arrived.headers:
            if name.lower() == "x-case":
                continue
            is_claim = claims and ("evil" in value or name.lower().startswith("impersonate"))
            if is_claim or any(secret in value for secret in self._secrets) or "Bearer" in value:
                return f"the upstream got {name}: {value}"
        return ""


def ambiguity(headers: Headers) -> str:
    """What in *headers* two programs could read differently: the end of the body, the end of a line, the protocol."""
    framing = [name for name, _ in headers if name.strip().lower() in ("content-length", "transfer-encoding")]
    if len(framing) > 1:
        return f"{' and '.join(framing)}"
    for name, value in headers:
        allowed = _UNAMBIGUOUS.get(name.lower(), "[^\r]*")
        if name != name.strip() or not re.fullmatch(allowed, value, re.IGNORECASE):
            return f"{name!r}: {value!r}"
    return ""


_UNAMBIGUOUS = {"content-length": "[0-9]+", "transfer-encoding": "chunked", "upgrade": "(websocket)?"}


def user_of(case: Case, *, impersonates: bool) -> UserInfo:
    """Who the upstream must be told; a door that differs may not see that somebody asks to be another."""
    if case.told and impersonates:
        name, groups = TOLD[case.told]
        return UserInfo(name, "", groups)
    return USERS[OWNERS.get(case.user or "", case.user or "")]


def _is_refusal(status: int) -> bool:
    # A body that is broken in its middle is also a failure of a gateway, to some.
    return status == HUNG_UP or 400 <= status < 600


# What a door answers that differs, by the reason.
EXCUSES: dict[str, Callable[[int], bool]] = {
    # What arrived has been looked at already.
    door_cases.NORMALISES: lambda status: status == 200 or _is_refusal(status),
    door_cases.OWN_READING: lambda status: status == 200 or _is_refusal(status),
    door_cases.ANY_HOST: lambda status: status == 200 or _is_refusal(status),
    door_cases.OWN_REFUSAL: _is_refusal,
    door_cases.PASSES_CLAIM: lambda status: status == 200,
    door_cases.REFUSES_CLAIM: lambda status: status == 400,
    door_cases.NOBODY_ELSE: lambda status: status == 400,
    door_cases.LEADS: lambda status: status == 303,
    door_cases.NO_500: lambda status: status == 503,
    door_cases.NO_LIMITS: lambda status: status == 200,
    door_cases.HIDES_NOTHING: lambda status: status == 403,
    door_cases.ANSWERS_ITSELF: lambda status: status != HUNG_UP,
    door_cases.NO_SCOPES: lambda status: status == 401,
}


def _mistake_in_same(case: Case, outcome: Outcome, example: Reply | None) -> str:
    if outcome.status != case.status:
        return f"answered {_shown(outcome)}, not {case.status}"
    if outcome.status == 200:
        return _mistake_in_request(case, outcome.arrived)
    return "" if outcome.reply is None else _mistake_in_refusal(case, outcome.reply, example)


def _mistake_in_request(case: Case, arrived: Arrived | None) -> str:
    if arrived is None:
        return "200 without the upstream"
    if arrived.target != (case.arrives or case.target):
        return f"the upstream got {arrived.target}"
    body = case.body if case.framing is None else case.content
    return "" if arrived.body == body else f"the upstream got the body {arrived.body[:80]!r}"


def _mistake_in_refusal(case: Case, reply: Reply, example: Reply | None) -> str:
    if reply.status == 401 and not (reply.header("WWW-Authenticate") or "").startswith("Bearer"):
        return "401 without a challenge"
    if reply.status == 429 and reply.header("Retry-After") != "7":
        return "429 without Retry-After"
    if not reply.header("Audit-Id"):
        return "without an Audit-Id"
    # What is wrong with a request may be another thing at another door.
    if example is None or reply.status == 400:
        return ""
    if case.method != "HEAD" and reply.body.strip() != example.body.strip():
        return f"another body: {reply.body[:200]!r}"
    # What has no body needs no type.
    names = [name for name in COMPARED if case.method != "HEAD" or name != "Content-Type"]
    others = [name for name in names if reply.header(name) != example.header(name)]
    return f"another {others[0]}: {reply.header(others[0])}" if others else ""


def _shown(outcome: Outcome) -> str:
    body = b"" if outcome.reply is None else outcome.reply.body
    return f"{outcome.status or 'nothing'} {body[:120]!r}"
