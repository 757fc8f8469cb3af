"""Device login (RFC 8628): a machine without a browser shows a code, and the user approves it in a browser.

    POST /auth/device -> device code (stored by the machine), user code (shown to the user)
    the user signs in anywhere, enters the user code, sees the client and its address, and approves or denies
    POST /auth/device/token with the device code, every two seconds -> not yet | tokens | denied

A user code is short, so it allows one decision, expires after ten minutes, and only signed-in users may try codes, at a
limited rate. Knowing a user code grants nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.interfaces.token_store import RecordStore, Session
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login.challenges import Ticket
from ostiary_gateway.login.identity_service import SignedIn
from ostiary_gateway.login.machine_grants import Grants
from ostiary_gateway.login.records import Records, Value
from ostiary_gateway.login.visit import field as form_field
from ostiary_gateway.login.visit import short
from ostiary_gateway.networks import network
from ostiary_gateway.sessions import Issued

LIFETIME = timedelta(minutes=10)
INTERVAL_SECONDS = 2
# No vowels, so that no code is a word; and no letter that reads like another one or like a digit.
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
CODE_LENGTH = 8
TRIES_PER_MINUTE = 10.0
# Two seconds by the machine's clock may be a little less by ours.
_POLLS_PER_SECOND = 1 / (INTERVAL_SECONDS * 0.9)
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A machine that waits for approval, as shown to the user."""

    user_code: str
    client: str
    address: str
    at: datetime
    # The ticket of a step-up, if the machine requests one and not a session of its own.
    step_up: str = field(default="", repr=False)


class Pending(Exception):
    """No tokens yet, or never: `error` is the code of RFC 8628."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error

    @property
    def is_routine(self) -> bool:
        """Whether the device only has to keep polling. This is not an error."""
        return self.error in ("authorization_pending", "slow_down")


class Devices:
    """Device authorization requests, from the codes to the tokens."""

    def __init__(
        self,
        store: RecordStore,
        grants: Grants,
        *,
        external_url: str,
        clock: Clock,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self._devices = Records(store, "device code", LIFETIME, clock=clock)
        self._requests = Records(store, "user code", LIFETIME, clock=clock)
        self._decisions = Records(store, "device decision", LIFETIME, clock=clock)
        self._grants = grants
        self._uri = f"{external_url}/auth/device"
        self._clock = clock
        self._polls = Buckets(_POLLS_PER_SECOND, 1, clock=clock, counts=counts, name="device polls")
        self._tries = Buckets(TRIES_PER_MINUTE / 60, TRIES_PER_MINUTE, clock=clock, counts=counts, name="user codes")

    # --- the machine ---

    async def begin(self, request: LoginRequest) -> Mapping[str, object]:
        device_code = secrets.token_urlsafe(32)
        client = short(form_field(request, "client") or "") or "an unnamed program"
        details = {
            "step_up": form_field(request, "step_up") or "",
            "client": client,
            "address": request.remote_address,
            "at": self._clock.now().isoformat(),
        }
        user_code = await self._new_user_code({**details, "device": _digest(device_code)})
        await self._devices.put(device_code, {})
        readable_code = shown_code(user_code)
        return {
            "device_code": device_code,
            "user_code": readable_code,
            "verification_uri": self._uri,
            "verification_uri_complete": f"{self._uri}?code={readable_code}",
            "interval": INTERVAL_SECONDS,
            "expires_in": int(LIFETIME.total_seconds()),
        }

    async def _new_user_code(self, details: Mapping[str, object]) -> str:
        for _ in range(_ATTEMPTS):
            user_code = "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))
            if await self._requests.put(user_code, details):
                return user_code
        raise ProviderError("no code could be generated", cause="all generated codes are in use")

    async def poll(self, request: LoginRequest) -> Issued | Session:
        """Return the tokens, or the session that was stepped up. Raises `Pending` if there are none, now or ever."""
        device_code = form_field(request, "device_code")
        if device_code is None or await self._devices.find(device_code) is None:
            raise Pending("expired_token")
        device = _digest(device_code)
        if self._polls.take(device):
            raise Pending("slow_down")
        decision = await self._decisions.take(device)
        if decision is None:
            raise Pending("authorization_pending")
        await self._devices.take(device_code)
        issued = await self._grants.redeem(decision["grant"]) if decision["grant"] else None
        if issued is None:
            raise Pending("access_denied")
        return issued

    # --- the user ---

    async def wait(self, request: LoginRequest, session: Session) -> float:
        """Count one attempt at a code. Return zero, or the number of seconds to wait.

        The count is exact across replicas, so an attacker gains nothing by alternating between them.
        """
        keys = (f"user {session.user.username}", f"address {network(request.remote_address)}")
        return max([await self._tries.take_exactly(key) for key in keys])

    async def find(self, user_code: str) -> DeviceRequest | None:
        record = await self._requests.find(user_code)
        return None if record is None else _request_of(user_code, record)

    async def ticket(self, device: DeviceRequest) -> Ticket | None:
        """Return the step-up that *device* requests; None if it has expired, or the device requests a session."""
        return await self._grants.ticket(device.step_up) if device.step_up else None

    async def decide(self, user_code: str, signed: SignedIn | None) -> DeviceRequest | None:
        """Approve as *signed*, or deny with None. Return None if there is nothing to decide any more.

        Raises `LoginRefused` if a step-up is for another user than *signed*.
        """
        record = await self._requests.take(user_code)
        if record is None:
            return None
        client = f"{record['client']} from {record['address']}"
        grant = None
        if signed is not None:
            now, ticket = self._clock.now(), record.get("step_up", "")
            try:
                grant = await self._grants.make(signed, client=client, at=now, step_up=ticket)
            except LoginRefused:
                # Release the waiting machine.
                await self._decisions.put(record["device"], {"grant": None})
                raise
        await self._decisions.put(record["device"], {"grant": grant})
        return _request_of(user_code, record)


def _request_of(user_code: str, record: Value) -> DeviceRequest:
    at = datetime.fromisoformat(record["at"])
    return DeviceRequest(user_code, record["client"], record["address"], at, record.get("step_up", ""))


def normal_code(text: str) -> str:
    """Normalize a user code as typed: case, dashes and spaces do not matter. Return "" if it cannot be one."""
    code = "".join(char for char in text.upper() if char not in " -\u2010\u2011\u2012\u2013\u2014\u00a0\t")
    return code if len(code) == CODE_LENGTH and set(code) <= set(LETTERS) else ""


def shown_code(user_code: str) -> str:
    return f"{user_code[:4]}-{user_code[4:]}"


def _digest(device_code: str) -> str:
    # The approval is stored under this digest, from which the device code cannot be derived.
    return sha256(f"ostiary device\0{device_code}".encode("utf-8", "surrogatepass")).hexdigest()
