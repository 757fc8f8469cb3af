"""What a probe of the health port reads."""

from __future__ import annotations

from ostiary_gateway.server.health import HealthReport

UNASKED = frozenset({"upstream b", "upstream c"})


def test_what_is_never_asked_is_not_called_good() -> None:
    report = HealthReport((("upstream a", ""), ("upstream b", ""), ("upstream c", "failed 3 times in a row")), UNASKED)
    assert report.text().splitlines()[:3] == [
        "[+] upstream a",
        "[ ] upstream b: not asked, it has no health path",
        "[-] upstream c: failed 3 times in a row",
    ]
    assert HealthReport(report.checks[:2], UNASKED).ready
