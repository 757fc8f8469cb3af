"""The metrics page: a snapshot in the text format of Prometheus. Pure.

Called by the health address, with the figures of all workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ostiary.gateway.observe.snapshots import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: Snapshot) -> bytes:
    """The text format of Prometheus."""
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
