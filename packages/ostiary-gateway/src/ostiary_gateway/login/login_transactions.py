"""Login transactions: sign-ins in progress, whose browser is at another page or filling in a form, and will return.

A random secret in a cookie identifies the transaction, so that only the browser that started it can finish it. It can
be finished once and expires after ten minutes. The return target is stored in the transaction on the server; no URL is
taken from a request.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from ostiary.core.clock import Clock
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest, RequiredAuthentication
from ostiary_gateway.interfaces.token_store import RecordStore
from ostiary_gateway.login.cookies import Cookie
from ostiary_gateway.login.records import Records, Value
from ostiary_gateway.login.required import required_from_json, required_json

LIFETIME = timedelta(minutes=10)
# The browser follows the redirect immediately.
PARKED_LIFETIME = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class CliReturnTo:
    """A command line on the user's machine listens on `port` for a code. It can prove that it requested the code.

    `step_up` is the ticket of a step-up (`login.step_up`): the user has a session, which needs stronger authentication.
    """

    challenge: str
    port: int
    state: str
    client: str
    step_up: str = field(default="", repr=False)
    required: RequiredAuthentication | None = None


@dataclass(frozen=True, slots=True)
class DeviceReturnTo:
    """The user is approving a device, and signs in first."""

    user_code: str
    required: RequiredAuthentication | None = None


@dataclass(frozen=True, slots=True)
class ApplicationReturnTo:
    """The user opened a web application. `request` is the id of the stored target (`login.web_apps`)."""

    request: str
    application: str
    origin: str
    required: RequiredAuthentication | None = None


ReturnTo = CliReturnTo | DeviceReturnTo | ApplicationReturnTo | None
"""What a login is for. None: a token, or a page of the gateway. `required` is what the sign-in must prove."""


@dataclass(frozen=True, slots=True)
class Flow:
    """State of one login.

    `identity` is the identity provider's name, empty while none is chosen or its password form is shown. `state` is the
    parameter that the redirect carried, under the name `state_name`. The return must carry the same value, or an
    attacker could finish their own login in another user's browser. `remember` belongs to the provider. `user` is set
    while groups are being looked up: the group providers before `position` have returned `memberships`, and `kept`,
    `origins`, `sign_out_hint` and `until` are what the identity provider returned for the session. `sequence` is the
    number of the last revocation when the login started.
    """

    identity: str = ""
    state: str | None = None
    remember: tuple[tuple[str, str], ...] = ()
    user: UserInfo | None = None
    position: int = 0
    memberships: tuple[Membership, ...] = ()
    goal: ReturnTo = None
    kept: Secret | None = None
    state_name: str = "state"
    origins: tuple[str, ...] = ()
    sign_out_hint: Secret | None = None
    sequence: int | None = None
    until: datetime | None = None


class LoginTransactions:
    """Login transactions in the token store, each bound to one browser by a cookie."""

    def __init__(self, store: RecordStore, *, secure: bool, clock: Clock) -> None:
        self._records = Records(store, "flow", LIFETIME, clock=clock)
        self._cookie = Cookie("login", secure=secure)

    async def begin(self, flow: Flow) -> tuple[str, str]:
        """Store *flow*. Return the Set-Cookie header that ties it to the browser."""
        key = secrets.token_urlsafe(32)
        await self._records.put(key, _to_json(flow))
        return self._cookie.set(key, seconds=LIFETIME.total_seconds())

    async def finish(self, request: LoginRequest) -> Flow | None:
        """Remove and return the transaction of this browser. None if there is none or the state does not match."""
        flow = await self._take(request)
        if flow is None or not flow.identity:
            return None
        returned = [value for name, value in (*request.query, *request.form) if name == flow.state_name]
        return flow if flow.state is None or returned == [flow.state] else None

    async def goal(self, request: LoginRequest) -> ReturnTo:
        """Return what this browser signs in for while the user is still choosing a provider."""
        key = self._cookie.of(request)
        value = await self._records.find(key) if key else None
        flow = None if value is None else _from_json(value)
        return flow.goal if flow is not None and not flow.identity else None

    async def take_goal(self, request: LoginRequest) -> ReturnTo:
        """Like `goal`, but end the transaction."""
        flow = await self._take(request)
        return flow.goal if flow is not None and not flow.identity else None

    async def _take(self, request: LoginRequest) -> Flow | None:
        key = self._cookie.of(request)
        value = await self._records.take(key) if key else None
        return None if value is None else _from_json(value)

    def forget(self) -> tuple[str, str]:
        return self._cookie.forget()


class PendingCallbacks:
    """Forms with which an IdP returns a browser, stored until the browser returns with its own cookies.

    A form of another site is sent without them (SameSite=Lax), so the gateway cannot yet find its login transaction.
    The browser is redirected to the same path with a single-use ticket. A ticket proves nothing: a browser that follows
    a link with another user's ticket presents a form that does not match its own transaction.
    """

    TICKET = "ostiary_return"

    def __init__(self, store: RecordStore, *, clock: Clock) -> None:
        self._records = Records(store, "parked return", PARKED_LIFETIME, clock=clock)

    async def park(self, request: LoginRequest) -> str:
        """Store the form of *request*. Return the URL to redirect the browser to."""
        ticket = secrets.token_urlsafe(32)
        await self._records.put(ticket, {"path": request.path, "query": request.query, "form": request.form})
        return f"{request.path}?{self.TICKET}={ticket}"

    async def claim(self, request: LoginRequest) -> LoginRequest:
        """Return *request* as the IdP sent it if it has a valid ticket, and unchanged otherwise."""
        tickets = [value for name, value in request.query if name == self.TICKET]
        value = await self._records.take(tickets[0]) if len(tickets) == 1 else None
        if value is None or value["path"] != request.path:
            return request
        return replace(request, method="POST", query=pairs(value["query"]), form=pairs(value["form"]))


def state_of(url: str, name: str = "state") -> str | None:
    """Return the parameter of a redirect that must come back, if it has one."""
    values = parse_qs(urlsplit(url).query, keep_blank_values=True).get(name)
    return values[0] if values else None


# --- as records ---


UserJson: TypeAlias = tuple[str, str, Sequence[str], Sequence[tuple[str, Sequence[str]]]]


def user_json(user: UserInfo) -> list[object]:
    return [user.username, user.uid, user.groups, user.extra]


def user_from_json(value: UserJson) -> UserInfo:
    username, uid, groups, extra = value
    return UserInfo(username, uid, tuple(groups), tuple((key, tuple(values)) for key, values in extra))


def pairs(value: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((first, second) for first, second in value)


def _to_json(flow: Flow) -> Value:
    goal = flow.goal
    value: dict[str, object] = {"identity": flow.identity, "state": flow.state, "remember": flow.remember}
    value["state_name"] = flow.state_name
    if flow.user is not None:
        value |= {"user": user_json(flow.user), "position": flow.position}
        value["memberships"] = [(member.group, member.source) for member in flow.memberships]
    if flow.kept is not None:
        value["kept"] = flow.kept.reveal()
    if flow.origins:
        value["origins"] = flow.origins
    if flow.sign_out_hint is not None:
        value["sign_out_hint"] = flow.sign_out_hint.reveal()
    if flow.sequence is not None:
        value["sequence"] = flow.sequence
    if flow.until is not None:
        value["until"] = flow.until.isoformat()
    if goal is not None and goal.required is not None:
        value["required"] = required_json(goal.required)
    if isinstance(goal, CliReturnTo):
        value["cli"] = [goal.challenge, goal.port, goal.state, goal.client, goal.step_up]
    elif isinstance(goal, DeviceReturnTo):
        value["device"] = goal.user_code
    elif isinstance(goal, ApplicationReturnTo):
        value["application"] = [goal.request, goal.application, goal.origin]
    return value


def _from_json(value: Value) -> Flow:
    goal: ReturnTo = None
    required = required_from_json(value["required"]) if "required" in value else None
    if "cli" in value:
        goal = replace(CliReturnTo(*value["cli"]), required=required)
    elif "device" in value:
        goal = DeviceReturnTo(value["device"], required)
    elif "application" in value:
        goal = replace(ApplicationReturnTo(*value["application"]), required=required)
    return Flow(
        identity=value["identity"],
        state=value["state"],
        remember=pairs(value["remember"]),
        user=user_from_json(value["user"]) if "user" in value else None,
        position=value.get("position", 0),
        memberships=tuple(Membership(*member) for member in value.get("memberships", ())),
        goal=goal,
        kept=Secret(value["kept"]) if "kept" in value else None,
        state_name=value.get("state_name", "state"),
        origins=tuple(value.get("origins", ())),
        sign_out_hint=Secret(value["sign_out_hint"]) if "sign_out_hint" in value else None,
        sequence=value.get("sequence"),
        until=datetime.fromisoformat(value["until"]) if "until" in value else None,
    )
