"""One figure at several sizes, as a row of the table: its values, and how much the last is of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.plots import line_plot
from bench.table import Row


def powers_of_ten(first: int, last: int) -> tuple[int, ...]:
    """From 10**first to 10**last."""
    return tuple(10**power for power in range(first, last + 1))


def growth_row(what: str, sizes: Sequence[float], values: Sequence[float], unit: str, *, at_most: float = 0.0) -> Row:
    """*at_most* is how many times the smallest size's figure the largest size's may be. Zero: nothing is promised."""
    listed = ", ".join(f"{value:,.{_digits(value)}f}" for value in values)
    ends = f"{sizes[0]:,} to {sizes[-1]:,}"
    if not at_most:
        return Row(f"{what}, {ends}", f"{listed} {unit}")
    return Row(f"{what}, {ends}", f"{listed} {unit}: {values[-1] / values[0]:.2f} x", f"<= {at_most:g} x")


def _digits(value: float) -> int:
    return 2 if value < 1 else 1 if value < 100 else 0


def growth_plot(
    name: str,
    title: str,
    sizes: str,
    unit: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log_y: bool = False,
) -> None:
    """Into bench/plots, the sizes by powers of ten. A line without points is left out."""
    drawn = {label: points for label, points in lines.items() if points}
    if drawn:
        line_plot(Path(f"{name}.svg"), title, sizes, unit, drawn, log_x=True, log_y=log_y)
