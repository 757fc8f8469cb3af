"""The figures of one worker, and how several workers' figures become one page for Prometheus.

    count (plain numbers, no locks)  ->  snapshot (JSON)  ->  merge  ->  render

Called by everything in the gateway, from the event loop only. Not prometheus_client: finding one of its labelled
series costs more than all of this does for a request. A label is never a user's name or anything else that callers
choose freely, and a family holds a bounded number of series whatever happens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

NAMESPACE = "ostiary_gateway_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
SERIES_LIMIT = 1000
OTHER = "other"

# The verbs that have a series of their own. For a path that is no resource's, the verb is whatever method was sent.
_KUBERNETES_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy")
VERBS = frozenset((*_KUBERNETES_VERBS, "post", "put", "head", "options"))

Labels: TypeAlias = tuple[str, ...]
Snapshot: TypeAlias = dict[str, Any]


class Counter:
    """Numbers that only grow, by their labels."""

    type = "counter"
    merging = "sum"

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name, self.help, self.labels = NAMESPACE + name, help, labels
        self.values: dict[Labels, float] = {} if labels else {(): 0}
        self._reader: Callable[[], float] | None = None

    def read_from(self, reader: Callable[[], float]) -> None:
        """Ask *reader* whenever the figures are wanted, instead of being told each change."""
        self._reader = reader

    def inc(self, *labels: str, by: float = 1) -> None:
        values = self.values
        if labels in values:
            values[labels] += by
        else:
            labels = _bounded(labels, values)
            values[labels] = values.get(labels, 0) + by

    def snapshot(self) -> list[Any]:
        if self._reader is not None:
            self.values[()] = self._reader()
        return [[list(labels), value] for labels, value in self.values.items()]


class Gauge(Counter):
    """Numbers that go up and down; *merging* says what several workers' numbers make: their sum, or their largest."""

    type = "gauge"

    def __init__(self, name: str, help: str, labels: Labels = (), *, merging: str = "sum") -> None:
        super().__init__(name, help, labels)
        self.merging = merging

    def set(self, value: float, *labels: str) -> None:
        self.values[labels if labels in self.values else _bounded(labels, self.values)] = value


class Histogram:
    """How often a number was how large. A series is a list: one count per bucket, one for the rest, and the sum."""

    type = "histogram"
    merging = "sum"

    def __init__(self, name: str, help: str, labels: Labels, buckets: Sequence[float]) -> None:
        self.name, self.help, self.labels, self.buckets = NAMESPACE + name, help, labels, tuple(buckets)
        self.values: dict[Labels, list[float]] = {} if labels else {(): self._empty()}

    def observe(self, value: float, *labels: str) -> None:
        series = self.values.get(labels)
        if series is None:
            series = self.values.setdefault(_bounded(labels, self.values), self._empty())
        series[bisect_left(self.buckets, value)] += 1
        series[-1] += value

    def snapshot(self) -> list[Any]:
        return [[list(labels), list(series)] for labels, series in self.values.items()]

    def _empty(self) -> list[float]:
        return [0] * (len(self.buckets) + 1) + [0.0]


class Requests:
    """Requests by verb, code and upstream, and how long they took.

    One series holds both: the counter is the sum of its histogram's buckets, so a request is counted in one step.
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
            same = took.values.setdefault((verb, upstream), took._empty())
            took.values[verb, upstream] = [mine + more for mine, more in zip(same, series, strict=True)]
        return total, took

    def _find(self, verb: str, code: int, upstream: str) -> list[float]:
        text = str(code) if 100 <= code <= 599 else OTHER
        labels: Labels = (verb if verb in VERBS else OTHER, text, upstream)
        if labels not in self._series.values:
            labels = _bounded(labels, self._series.values)
        series = self._series.values.setdefault(labels, self._series._empty())
        # Only names that we made are remembered: a caller may invent any number of methods.
        if (verb in VERBS or not verb) and len(self._keys) < SERIES_LIMIT:
            self._keys[verb, code, upstream] = series
        return series


class Metrics:
    """All figures of a worker. Each attribute is a family; the comment-like help text is what Prometheus shows."""

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
        self.rate_limited = Counter("rate_limited_total", "Requests refused with 429, by limit.", ("limit",))
        self.admissions = Counter("admission_refusals_total", "Requests that an admission provider refused.")
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
        self.build_info = Gauge("build_info", "Always 1; the version is in the label.", ("version",), merging="max")
        self.build_info.set(1, version)
        self.default_configuration = Gauge(
            "default_configuration",
            "1 if everybody is the same user and may do everything, because nothing is configured.",
            merging="max",
        )

    def snapshot(self) -> Snapshot:
        """Everything, as JSON could carry it from one process to another."""
        return {family.name: _family(family) for family in self._families()}

    def render(self) -> bytes:
        return render(self.snapshot())

    def _families(self) -> Iterable[Counter | Histogram]:
        for value in vars(self).values():
            if isinstance(value, Requests):
                yield from value.families()
            else:
                yield value


def _family(family: Counter | Histogram) -> dict[str, Any]:
    found = {
        "type": family.type,
        "help": family.help,
        "labels": list(family.labels),
        "merging": family.merging,
        "series": family.snapshot(),
    }
    if isinstance(family, Histogram):
        found["buckets"] = list(family.buckets)
    return found


def _bounded(labels: Labels, values: Mapping[Labels, object]) -> Labels:
    """*labels*, or the series for all the rest when there are enough."""
    return labels if len(values) < SERIES_LIMIT else (OTHER,) * len(labels)


# --- several workers ---


def merge(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The figures of all workers together. Workers of another version may have other families; none is lost."""
    merged: Snapshot = {}
    for snapshot in snapshots:
        for name, family in snapshot.items():
            if name not in merged:
                merged[name] = {**family, "series": [[labels, _copy(value)] for labels, value in family["series"]]}
            elif family.get("buckets") == merged[name].get("buckets"):
                _merge_family(merged[name], family)
    return merged


def _merge_family(into: dict[str, Any], family: Mapping[str, Any]) -> None:
    known = {tuple(series[0]): series for series in into["series"]}
    for labels, value in family["series"]:
        series = known.get(tuple(labels))
        if series is None:
            into["series"].append([labels, _copy(value)])
        elif isinstance(value, list):
            series[1] = [mine + theirs for mine, theirs in zip(series[1], value, strict=True)]
        else:
            series[1] = max(series[1], value) if into["merging"] == "max" else series[1] + value


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


# --- the page ---


def render(snapshot: Snapshot) -> bytes:
    """The text format of Prometheus."""
    rows: list[str] = []
    for name, family in snapshot.items():
        rows += [f"# HELP {name} {_escape(family['help'], quote=False)}", f"# TYPE {name} {family['type']}"]
        for labels, value in sorted(family["series"], key=lambda series: series[0]):
            pairs = list(zip(family["labels"], labels, strict=True))
            if family["type"] == "histogram":
                rows += _histogram_rows(name, pairs, family["buckets"], value)
            else:
                rows.append(f"{name}{_labels(pairs)} {_number(value)}")
    return ("\n".join(rows) + "\n").encode()


def _histogram_rows(
    name: str, pairs: list[tuple[str, str]], buckets: Sequence[float], series: Sequence[float]
) -> Iterable[str]:
    total = 0.0
    for bound, count in zip([*buckets, None], series[:-1], strict=True):
        total += count
        le = "+Inf" if bound is None else _number(bound)
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
