"""The metrics page can be read by Prometheus, whatever the labels hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.observability.metrics import Counter, Metrics
from tests.support.metrics import value


@given(st.text(), st.integers(min_value=0, max_value=2**53))
@settings(max_examples=100)
def test_any_label_survives_the_page(label: str, count: int) -> None:
    if label.encode("utf-8", "ignore").decode() != label:
        return
    family = Counter("x_total", "h", ("result",))
    family.inc(label, by=count)
    metrics = Metrics()
    metrics.authentications = family
    # The parser reads lines as Python does, and Prometheus only at a line feed.
    if label.splitlines() in ([label], []):
        assert value(metrics.render(), "x_total", result=label) == count
