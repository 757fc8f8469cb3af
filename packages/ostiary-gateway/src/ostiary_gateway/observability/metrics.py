"""Metrics of the gateway: counters, gauges, histograms, their declarations, and the Prometheus text format.

    count (plain numbers)  ->  snapshot (JSON)  ->  merge (`snapshots`)  ->  render

Values are plain numbers without locks, updated from the event loop only. We do not use prometheus_client: its lookup of
one labelled series costs more than all our metrics of a request. The number of series per family is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ostiary_gateway.observability.snapshots import Family, Series, Snapshot

NAMESPACE = "ostiary_gateway_"
SERIES_LIMIT = 1000
OTHER = "other"

Labels: TypeAlias = tuple[str, ...]


class Counter:
    """A family of numbers that only grow, by label values."""

    type = "counter"
    merging = "sum"

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name, self.help, self.labels = NAMESPACE + name, help, labels
        self.values: dict[Labels, float] = {} if labels else {(): 0}
        self._reader: Callable[[], float] | None = None

    def read_from(self, reader: Callable[[], float]) -> None:
        """Call *reader* at each snapshot instead of counting each change."""
        self._reader = reader

    def inc(self, *labels: str, by: float = 1) -> None:
        values = self.values
        if labels in values:
            values[labels] += by
        else:
            labels = bounded_labels(labels, values)
            values[labels] = values.get(labels, 0) + by

    def snapshot(self) -> Family:
        if self._reader is not None:
            self.values[()] = self._reader()
        return _family(self, [(list(labels), value) for labels, value in self.values.items()])


class Gauge(Counter):
    """A family of numbers that go up and down. *merging* combines the workers' values: ``sum`` or ``max``."""

    type = "gauge"

    def __init__(self, name: str, help: str, labels: Labels = (), *, merging: str = "sum") -> None:
        super().__init__(name, help, labels)
        self.merging = merging

    def set(self, value: float, *labels: str) -> None:
        self.values[labels if labels in self.values else bounded_labels(labels, self.values)] = value


class Histogram:
    """A family of distributions. A series is a list: one count per bucket, one for larger values, and the sum."""

    type = "histogram"
    merging = "sum"

    def __init__(self, name: str, help: str, labels: Labels, buckets: Sequence[float]) -> None:
        self.name, self.help, self.labels, self.buckets = NAMESPACE + name, help, labels, tuple(buckets)
        self.values: dict[Labels, list[float]] = {} if labels else {(): self.empty_series()}

    def observe(self, value: float, *labels: str) -> None:
        series = self.values.get(labels)
        if series is None:
            series = self.values.setdefault(bounded_labels(labels, self.values), self.empty_series())
        series[bisect_left(self.buckets, value)] += 1
        series[-1] += value

    def snapshot(self) -> Family:
        family = _family(self, [(list(labels), list(series)) for labels, series in self.values.items()])
        return {**family, "buckets": list(self.buckets)}

    def empty_series(self) -> list[float]:
        return [0] * (len(self.buckets) + 1) + [0.0]


def bounded_labels(labels: Labels, values: Mapping[Labels, object]) -> Labels:
    """Return *labels*, or the labels of the overflow series if the family has `SERIES_LIMIT` series."""
    return labels if len(values) < SERIES_LIMIT else (OTHER,) * len(labels)


def _family(family: Counter | Histogram, series: list[Series]) -> Family:
    return {
        "type": family.type,
        "help": family.help,
        "labels": list(family.labels),
        "merging": family.merging,
        "series": series,
    }


# The metrics endpoint: a snapshot in the Prometheus text format.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: Snapshot) -> bytes:
    """Render a snapshot in the Prometheus text format."""
    rows: list[str] = []
    for name, family in snapshot.items():
        rows += [f"# HELP {name} {_escape(family['help'], quote=False)}", f"# TYPE {name} {family['type']}"]
        for labels, value in sorted(family["series"], key=lambda series: series[0]):
            pairs = list(zip(family["labels"], labels, strict=True))
            if isinstance(value, list):
                rows += _histogram_rows(name, pairs, family["buckets"], value)
            else:
                rows.append(f"{name}{_labels(pairs)} {_number(value)}")
    return ("\n".join(rows) + "\n").encode()


def _histogram_rows(
    name: str, pairs: list[tuple[str, str]], buckets: Sequence[float], series: Sequence[float]
) -> Iterable[str]:
    total = 0.0
    for limit, count in zip([*buckets, None], series[:-1], strict=True):
        total += count
        le = "+Inf" if limit is None else _number(limit)
        yield f"{name}_bucket{_labels([*pairs, ('le', le)])} {_number(total)}"
    yield f"{name}_sum{_labels(pairs)} {_number(series[-1])}"
    yield f"{name}_count{_labels(pairs)} {_number(total)}"


def _labels(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}" if pairs else ""


def _escape(text: str, *, quote: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


# The declarations of all metrics.

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

# Verbs with their own series. The verb of a non-resource request is its HTTP method, which the client chooses freely.
_KUBERNETES_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy")
VERBS = frozenset((*_KUBERNETES_VERBS, "post", "put", "head", "options"))


class Requests:
    """Counter and duration histogram of requests, by verb, code and upstream.

    Both use one series, so that a request is counted in one step: the counter is the sum of the histogram's buckets.
    """

    def __init__(self) -> None:
        labels = ("verb", "code", "upstream")
        self._series = Histogram("requests", "", labels, LATENCY_BUCKETS)
        self._keys: dict[tuple[str, int, str], list[float]] = {}

    def count(self, verb: str, code: int, upstream: str, seconds: float) -> None:
        series = self._keys.get((verb, code, upstream))
        if series is None:
            series = self._find(verb, code, upstream)
        series[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        series[-1] += seconds

    @property
    def total(self) -> float:
        """Number of requests that got a response."""
        return sum(sum(series[:-1]) for series in self._series.values.values())

    def families(self) -> tuple[Counter, Histogram]:
        total = Counter("requests_total", "Requests answered.", ("verb", "code", "upstream"))
        took = Histogram(
            "request_duration_seconds",
            "From the first byte of a request to the last of its answer.",
            ("verb", "upstream"),
            LATENCY_BUCKETS,
        )
        for (verb, code, upstream), series in self._series.values.items():
            total.inc(verb, code, upstream, by=sum(series[:-1]))
            sums = took.values.setdefault((verb, upstream), took.empty_series())
            took.values[verb, upstream] = [sum_ + more for sum_, more in zip(sums, series, strict=True)]
        return total, took

    def _find(self, verb: str, code: int, upstream: str) -> list[float]:
        text = str(code) if 100 <= code <= 599 else OTHER
        labels: Labels = (verb if verb in VERBS else OTHER, text, upstream)
        if labels not in self._series.values:
            labels = bounded_labels(labels, self._series.values)
        series = self._series.values.setdefault(labels, self._series.empty_series())
        # Cache only known verbs: a client may invent any number of methods.
        if (verb in VERBS or not verb) and len(self._keys) < SERIES_LIMIT:
            self._keys[verb, code, upstream] = series
        return series


class Metrics:
    """All metrics of a worker. Each attribute is a family.

    A label value is never a user name or anything else that callers choose freely.
    ``docs/how-to/audit-and-metrics.md`` lists all metrics; a test compares the two.
    """

    def __init__(self, *, version: str = "") -> None:
        self.requests = Requests()
        self.authentications = Counter(
            "authentications_total", "Requests by the result of authentication.", ("result",)
        )
        self.decisions = Counter(
            "decisions_total",
            "Authorization decisions that were not cached, by verdict.",
            ("verdict",),
        )
        self.tokens_live = Gauge("tokens_live", "Tokens that are neither expired nor revoked.", merging="max")
        self.revocations = Counter("revocations_total", "Revocations by kind.", ("kind",))
        self.revocation_lag = Histogram(
            "revocation_lag_seconds", "From a revocation to its effect in this worker.", (), LAG_BUCKETS
        )
        self.revocations_age = Gauge(
            "revocations_confirmed_seconds",
            "Age of the store's latest confirmation of revocations; beyond tokens.maxStale requests get 503.",
            merging="max",
        )
        self.store_failing = Gauge("token_store_failing", "1 while the token store cannot be written.", merging="max")
        self.audit_events = Counter("audit_events_total", "Audit events made.")
        self.audit_dropped = Counter("audit_dropped_total", "Audit events that could not be stored.")
        self.counts_alone = Gauge(
            "counts_alone", "1 while this replica counts requests alone, because the store is away.", merging="max"
        )
        self.counts_waiting = Gauge("counts_waiting", "Limits whose use the other replicas have not been told yet.")
        self.counts_dropped = Counter(
            "counts_dropped_total", "Limits whose use the other replicas were not told, for want of room."
        )
        self.rate_limited = Counter("rate_limited_total", "Requests refused with 429, by limit.", ("limit",))
        self.admissions = Counter("admission_refusals_total", "Requests that an admission provider refused.")
        self.quota_fullest = Gauge(
            "object_quota_fullest_ratio",
            "By limit of objects: how full its fullest subject was when it was last counted; 1 is full.",
            ("limit",),
            merging="max",
        )
        self.quota_corrections = Counter(
            "object_quota_corrections_total", "Lists of an upstream that told something else than was counted."
        )
        self.policy_age = Gauge(
            "followed_policy_age_seconds",
            "By provider: how long ago its cluster last confirmed the policy; beyond from.maxStale nothing is allowed.",
            ("provider",),
            merging="max",
        )
        self.policy_objects = Gauge(
            "followed_policy_objects", "By provider: roles and bindings of its cluster.", ("provider",), merging="max"
        )
        self.policy_lists = Counter(
            "followed_policy_lists_total", "By provider: lists of a kind that were read whole.", ("provider",)
        )
        self.policy_changes = Counter(
            "followed_policy_changes_total", "By provider: changes of roles and bindings taken up.", ("provider",)
        )
        self.policy_unreadable = Counter(
            "followed_policy_unreadable_total",
            "By provider: roles, bindings and messages of its cluster that could not be understood.",
            ("provider",),
        )
        self.replicas = Gauge(
            "replicas", "Replicas of this gateway that write into the same token store.", merging="max"
        )
        self.other_configuration = Gauge(
            "replicas_other_configuration",
            "Of these, the replicas whose configuration is not that of most.",
            merging="max",
        )
        self.notes_dropped = Counter(
            "notes_dropped_total",
            "Refusals and ends of requests that only the worker remembers which answered them.",
            ("topic",),
        )
        self.step_ups = Counter(
            "step_ups_total",
            "Requests that a step-up rule stopped, by rule and what became of them.",
            ("rule", "result"),
        )
        self.held = Gauge("step_up_held_requests", "Requests that wait while a person proves more.")
        self.shadow_reviews = Counter(
            "shadow_reviews_total",
            "Requests chosen for a comparison with the cluster's decision, by upstream and what came of it.",
            ("upstream", "outcome"),
        )
        self.queued = Gauge("queued_requests", "Requests in the queue.")
        self.in_flight = Gauge("in_flight_requests", "Requests that are being answered.")
        self.open_streams = Gauge("open_streams", "Watches, logs and terminals that are open.")
        self.upstream_errors = Counter(
            "upstream_errors_total", "Requests to upstreams that failed, by kind.", ("upstream", "kind")
        )
        self.provider_errors = Counter("provider_errors_total", "Calls to providers that failed.", ("type", "provider"))
        self.logins = Counter(
            "logins_total", "Visits to /auth by identity provider and result.", ("provider", "result")
        )
        self.door_questions = Counter(
            "door_questions_total", "Questions of other proxies, by door and what became of them.", ("door", "result")
        )
        self.door_decisions = Counter(
            "door_decisions_total",
            "Decisions that HAProxy was told to use again, by door and what became of them.",
            ("door", "result"),
        )
        self.jwts = Counter("issuer_jwts_total", "JWTs that the issuer has signed, by audience.", ("audience",))
        self.issuer_failing = Gauge(
            "issuer_failing", "1 while the signing keys cannot be read or rotated, or no key can sign.", merging="max"
        )
        self.issuer_keys = Gauge("issuer_keys", "Signing keys that are published.", merging="max")
        self.credential_reviews = Counter(
            "credential_reviews_total", "Reviews of clusters that verify JWTs themselves, by result.", ("result",)
        )
        self.revoked_credentials = Gauge(
            "revoked_credentials", "Entries in the list of revoked credentials that clusters fetch.", merging="max"
        )
        self.spans_sent = Counter("spans_sent_total", "Spans of traces that the collector has accepted.")
        self.spans_dropped = Counter(
            "spans_dropped_total", "Spans of traces that did not reach the collector, by reason.", ("reason",)
        )
        self.tls_handshakes = Counter(
            "tls_handshakes_total",
            "TLS handshakes with clients (listener) and with upstreams: full, resumed or failed.",
            ("side", "result"),
        )
        self.certificate_expiry = Gauge(
            "listener_certificate_expiry_timestamp_seconds",
            "When the listener's certificate expires, in Unix time; 0 without one.",
            merging="max",
        )
        self.build_info = Gauge("build_info", "Always 1; the version is in the label.", ("version",), merging="max")
        self.build_info.set(1, version)
        self.default_configuration = Gauge(
            "default_configuration",
            "1 if everybody is the same user and may do everything, because nothing is configured.",
            merging="max",
        )

    def listener_handshake(self, result: str) -> None:
        self.tls_handshakes.inc("listener", result)

    def upstream_handshake(self, result: str) -> None:
        self.tls_handshakes.inc("upstream", result)

    def snapshot(self) -> Snapshot:
        """Return the values of all families as JSON-compatible data."""
        return {family.name: family.snapshot() for family in self._families()}

    def render(self) -> bytes:
        return render(self.snapshot())

    def _families(self) -> Iterable[Counter | Histogram]:
        for value in vars(self).values():
            if isinstance(value, Requests):
                yield from value.families()
            else:
                yield value
