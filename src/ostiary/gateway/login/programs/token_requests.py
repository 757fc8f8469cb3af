"""The requests of programs for tokens: a command line exchanges its code, a device begins and polls.

Called by the routes. `command_line` and `device` keep what is being waited for.
"""

from __future__ import annotations

from ostiary.core.tokens import Issued
from ostiary.errors import LoginRefused
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.programs.command_line import Codes
from ostiary.gateway.login.programs.device import Devices, Pending
from ostiary.gateway.login.visit import AddressLimit
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Session


class TokenRequests:
    """*step_up*: there are step-up rules, which programs are told of."""

    def __init__(
        self, codes: Codes, devices: Devices, events: LoginEvents, starts: AddressLimit, *, step_up: bool
    ) -> None:
        self._step_up = step_up
        self._codes = codes
        self._devices = devices
        self._events = events
        self._starts = starts

    async def exchange_code(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        try:
            pair = await self._codes.exchange(request)
        except Exception as error:
            return self._events.record_failure(error, request)
        if pair is None:
            cause = "the code is unknown, used, or belongs to another user"
            refusal = LoginRefused("invalid sign-in code", cause=cause)
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_grant"))
        return self._answer(request, pair)

    async def begin_device(self, request: LoginRequest) -> LoginAnswer:
        if wait := self._starts.wait(request):
            return answers.too_many(wait)
        try:
            return answers.json_answer(200, await self._devices.begin(request))
        except Exception as error:
            return self._events.record_failure(error, request)

    async def poll_device(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        try:
            pair = await self._devices.poll(request)
        except Pending as pending:
            return answers.grant_refusal(pending.error, routine=pending.is_routine)
        except Exception as error:
            return self._events.record_failure(error, request)
        return self._answer(request, pair)

    def _answer(self, request: LoginRequest, granted: Issued | Session) -> LoginAnswer:
        if isinstance(granted, Session):
            self._events.record_session(LoginEventKind.STEPPED_UP, request, granted)
            return answers.stepped_up(granted)
        self._events.record_session(LoginEventKind.ISSUED, request, granted.session)
        return answers.token_pair(granted, step_up=self._step_up)
