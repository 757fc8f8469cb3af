"""Reads a metrics page as Prometheus would."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would read."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(page: bytes, name: str, **labels: str) -> float:
    return samples(page)[f"ostiary_gateway_{name}", tuple(sorted(labels.items()))]
