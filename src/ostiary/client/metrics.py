"""The figures that client-go publishes about exec plugins, under the same names.

Called by `client.exec.plugin` (policy, calls) and by the authenticator (certificates). `core.metrics` publishes them.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.metrics import DefaultMetrics, PublishedMetrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

NO_ERROR = "no_error"
PLUGIN_EXECUTION_ERROR = "plugin_execution_error"
PLUGIN_NOT_FOUND_ERROR = "plugin_not_found_error"
CLIENT_INTERNAL_ERROR = "client_internal_error"

TTL_SECONDS = "rest_client_exec_plugin_ttl_seconds"
ROTATION_AGE = "rest_client_exec_plugin_certificate_rotation_age"
CALL_TOTAL = "rest_client_exec_plugin_call_total"
POLICY_CALL_TOTAL = "rest_client_exec_plugin_policy_call_total"

HOUR, DAY = 3600, 86400
# Too often, then healthy, then too rarely: minutes, then hours to a month, then months to four years.
ROTATION_AGE_BUCKETS = (
    600, 1800, HOUR, 4 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 360 * DAY, 1440 * DAY,
)  # fmt: skip


class ExecMetrics(Protocol):
    """What is counted. Called from any thread; never raises and never waits."""

    def record_call(self, *, code: int, call_status: str) -> None:
        """The plugin ended with *code*, or could not be started. Counted before its answer is read."""

    def policy(self, *, allowed: bool) -> None:
        """The policy let a run pass, or refused it. A refused run is not a call."""

    def record_rotation(self, *, age_seconds: float) -> None:
        """A client certificate was replaced *age_seconds* after it became valid."""

    def expires(self, holder: object, not_after: datetime | None) -> None:
        """*holder* now has a client certificate valid until *not_after*, or none at all.

        The holder is only referenced weakly: when it is gone, so is its certificate.
        """


class NoMetrics:
    """Counts nothing."""

    def record_call(self, *, code: int, call_status: str) -> None: ...

    def policy(self, *, allowed: bool) -> None: ...

    def record_rotation(self, *, age_seconds: float) -> None: ...

    def expires(self, holder: object, not_after: datetime | None) -> None: ...


class PrometheusMetrics(PublishedMetrics):
    """Counts in *registry*, which is prometheus_client's own unless given."""

    def __init__(self, registry: CollectorRegistry | None = None, clock: Clock | None = None) -> None:
        super().__init__(registry)
        self._expiries = Expiries(clock or SYSTEM_CLOCK)
        self._rotation_age = self.histogram(
            ROTATION_AGE,
            "How many seconds a client certificate from an exec plugin had been valid when it was replaced.",
            buckets=ROTATION_AGE_BUCKETS,
        )
        self._calls = self.counter(
            CALL_TOTAL,
            "How many times an exec plugin was called, by exit code and by how the call ended. "
            "The code is 0 only for a call that succeeded.",
            ["code", "call_status"],
        )
        self._policy_calls = self.counter(
            POLICY_CALL_TOTAL,
            "How many times the plugin policy decided about an exec plugin, by decision.",
            ["status"],
        )
        self.publish()

    def record_call(self, *, code: int, call_status: str) -> None:
        self._calls.labels(code=str(code), call_status=call_status).inc()

    def policy(self, *, allowed: bool) -> None:
        self._policy_calls.labels(status="allowed" if allowed else "denied").inc()

    def record_rotation(self, *, age_seconds: float) -> None:
        self._rotation_age.observe(age_seconds)

    def expires(self, holder: object, not_after: datetime | None) -> None:
        self._expiries.set(holder, not_after)

    def read_at_scrape(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        yield GaugeMetricFamily(
            TTL_SECONDS,
            "How many seconds are left until the first client certificate from an exec plugin expires: "
            "negative when it has, +Inf when there is none.",
            value=self._expiries.seconds_left(),
        )


class Expiries:
    """When the client certificates that are held now expire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Reentrant: looking at a weak reference may drop the holder, and its end may be told to us.
        self._lock = threading.RLock()
        self._held: dict[int, tuple[weakref.ref[object], datetime]] = {}

    def set(self, holder: object, not_after: datetime | None) -> None:
        with self._lock:
            self._forget_the_gone()
            if not_after is None:
                self._held.pop(id(holder), None)
            else:
                self._held[id(holder)] = (weakref.ref(holder), not_after)

    def seconds_left(self) -> float:
        with self._lock:
            self._forget_the_gone()
            earliest = min((not_after for _, not_after in self._held.values()), default=None)
        return math.inf if earliest is None else (earliest - self._clock.now()).total_seconds()

    def _forget_the_gone(self) -> None:
        # Here and not in a callback of the weak reference: that would run in the middle of anything,
        # also of the loop above.
        self._held = {key: certificate for key, certificate in self._held.items() if certificate[0]() is not None}


# The metrics of this process: Prometheus's if `prometheus_client` is installed, else none.
default_metrics: DefaultMetrics[ExecMetrics] = DefaultMetrics(
    "exec plugin", published=PrometheusMetrics, none=NoMetrics, log=logging.getLogger(__name__)
)
