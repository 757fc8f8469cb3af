"""The service level objectives of an exec plugin's client, over simulated days.

A certificate is replaced within 1 % of its lifetime, and at most 0.01 % of the calls fail (the document that client-go
follows). The authenticator and its metrics are the real ones; the clock is a fake one, and the plugin answers at once,
or not at all while its issuer is away. A request is made every few seconds, as a controller makes them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry

from bench.pace import pace
from bench.table import Row
from ostiary.client.authenticator import Authenticator
from ostiary.client.metrics import CALL_TOTAL, NO_ERROR, PLUGIN_EXECUTION_ERROR, TTL_SECONDS, PrometheusMetrics
from ostiary.client.retry_on_401 import Rejection
from ostiary.errors import CredentialError
from ostiary.model import ClientCertificate, Credential, Secret
from ostiary.testing import FakeClock

DAYS = pace(30, quick=1)
BETWEEN_REQUESTS = (1.0, 9.0)
LIFETIMES = {"1 hour": 3600.0, "8 hours": 8 * 3600.0, "24 hours": 24 * 3600.0}
SHORT = 900.0
# Shorter than the window in which a credential is refreshed ahead: 30 s.
OUTAGE_SECONDS = 15.0


class Issuer:
    """A plugin that brings certificates of *lifetime* seconds; counts its calls as `client.exec.plugin` does."""

    def __init__(self, clock: FakeClock, metrics: PrometheusMetrics, lifetime: float) -> None:
        self._clock, self._metrics, self._lifetime = clock, metrics, timedelta(seconds=lifetime)
        self.away_until: datetime | None = None

    def is_interactive(self) -> bool:
        return False

    def run(self, rejection: Rejection | None) -> Credential:
        now = self._clock.now()
        if self.away_until is not None and now < self.away_until:
            self._metrics.record_call(code=1, call_status=PLUGIN_EXECUTION_ERROR)
            raise CredentialError("the exec plugin failed", cause="its issuer is away", code="exec-plugin-failed")
        self._metrics.record_call(code=0, call_status=NO_ERROR)
        ends = now + self._lifetime
        certificate = ClientCertificate("chain", Secret(f"key of {now}"), not_before=now, not_after=ends)
        return Credential(certificate=certificate, expires_at=ends)

    def expired_error(self, cause: str) -> CredentialError:
        return CredentialError("the credential had expired", cause=cause, code="exec-plugin-failed")


@dataclass
class Observed:
    """What a simulation has seen: `distances` are those of the rotations from the expiry, in parts of the lifetime."""

    requests: int = 0
    without_credential: int = 0
    plugin_calls: float = 0
    failed_calls: float = 0
    distances: list[float] = field(default_factory=list)
    least_seconds_left: float = float("inf")


def simulate(lifetime: float, *, days: float, outages: bool = False, seed: int = 1) -> Observed:
    """Requests of *days*. With *outages* the issuer is away at the beginning of every rotation."""
    chance = random.Random(seed)
    clock, registry, seen = FakeClock(), CollectorRegistry(), Observed()
    metrics = PrometheusMetrics(registry, clock)
    issuer = Issuer(clock, metrics, lifetime)
    authenticator = Authenticator(issuer, clock=clock, metrics=metrics, jitter=chance.random)
    end = clock.now() + timedelta(days=days)
    before: Credential | None = None
    while clock.now() < end:
        seen.requests += 1
        if outages and before is not None and _is_due(before, clock) and issuer.away_until is None:
            issuer.away_until = clock.now() + timedelta(seconds=OUTAGE_SECONDS)
        credential = _request(authenticator)
        seen.without_credential += credential is None
        _finish_refresh(authenticator)
        if authenticator.latest is not before:
            _note_rotation(seen, before, clock, lifetime)
            before, issuer.away_until = authenticator.latest, None
        seen.least_seconds_left = min(seen.least_seconds_left, registry.get_sample_value(TTL_SECONDS) or 0.0)
        clock.advance(chance.uniform(*BETWEEN_REQUESTS))
    for status in (NO_ERROR, PLUGIN_EXECUTION_ERROR):
        labels = {"code": "0" if status == NO_ERROR else "1", "call_status": status}
        calls = registry.get_sample_value(CALL_TOTAL, labels) or 0.0
        seen.plugin_calls += calls
        seen.failed_calls += 0 if status == NO_ERROR else calls
    return seen


def _is_due(credential: Credential, clock: FakeClock) -> bool:
    assert credential.expires_at is not None
    return (credential.expires_at - clock.now()).total_seconds() <= 30.0


def _request(authenticator: Authenticator) -> Credential | None:
    try:
        return authenticator.get()
    except CredentialError:
        return None


def _finish_refresh(authenticator: Authenticator) -> None:
    """Wait for the thread that refreshes in the background: simulated time does not pass for it."""
    with authenticator._runs.lock:
        run: Future[Credential] | None = authenticator._runs.running()
    if run is not None:
        run.exception()


def _note_rotation(seen: Observed, before: Credential | None, clock: FakeClock, lifetime: float) -> None:
    if before is not None and before.expires_at is not None:
        seen.distances.append((clock.now() - before.expires_at).total_seconds() / lifetime)


def run() -> Iterator[Row]:
    for name, lifetime in LIFETIMES.items():
        seen = simulate(lifetime, days=DAYS)
        yield Row(
            f"certificates of {name}, {DAYS} days: furthest rotation from the expiry, in lifetimes",
            f"{max(map(abs, seen.distances)):.2%} ({len(seen.distances)} rotations; the latest {_when(seen)})",
            "<= 1 %, none late",
        )
        yield Row(
            f"certificates of {name}, {DAYS} days: requests without a valid credential; failed plugin calls",
            f"{seen.without_credential} of {seen.requests:,}; {seen.failed_calls:.0f} of {seen.plugin_calls:.0f}",
            "<= 0.01 %",
        )
    seen = simulate(LIFETIMES["1 hour"], days=DAYS, outages=True)
    yield Row(
        f"the same, 1 hour, the issuer away for {OUTAGE_SECONDS:.0f} s at each rotation: requests without a credential",
        f"{seen.without_credential} of {seen.requests:,} ({seen.failed_calls:.0f} plugin calls failed; {_when(seen)})",
        "<= 0.01 %",
    )
    seen = simulate(SHORT, days=DAYS)
    yield Row(
        "credentials of 15 minutes: furthest rotation from the expiry, in lifetimes",
        f"{max(map(abs, seen.distances)):.2%} ({_when(seen)}), {seen.without_credential} requests without one",
        "none late",
    )


def _when(seen: Observed) -> str:
    latest = max(seen.distances)
    return f"{-latest:.2%} of the lifetime before it" if latest <= 0 else f"{latest:.2%} of the lifetime after it"
