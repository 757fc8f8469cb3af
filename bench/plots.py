"""Draws figures as SVG: readable on a light and a dark ground, text as text, and the same bytes for the same figures.

matplotlib lays them out. Its colours are placeholders here that the SVG's own style sheet decides, by what the reader
prefers; the ground is painted too, so that a page whose theme differs from the system's leaves nothing unreadable.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).with_name("plots")
SIZE = (9.0, 4.0)
# What matplotlib is told, what the style sheet calls it, and what it is on a light and on a dark ground.
COLOURS = {
    "#010101": ("ground", "#ffffff", "#0d1117"),
    "#020202": ("ink", "#1f2328", "#e6edf3"),
    "#030303": ("grid", "#d0d7de", "#30363d"),
    "#040404": ("promise", "#cf222e", "#ff7b72"),
    "#050501": ("first", "#0969da", "#58a6ff"),
    "#050502": ("second", "#bc4c00", "#f0883e"),
    "#050503": ("third", "#1a7f37", "#56d364"),
    "#050504": ("fourth", "#8250df", "#bc8cff"),
    "#050505": ("fifth", "#6e7781", "#8b949e"),
    "#050506": ("sixth", "#9a6700", "#e3b341"),
    "#050507": ("seventh", "#bf3989", "#f778ba"),
    "#050508": ("eighth", "#1b7c83", "#76e3ea"),
}
GROUND, INK, GRID, PROMISE, *SERIES = COLOURS
_SETTINGS: Any = {
    "svg.fonttype": "none",
    # Ids in the file are hashes; without a salt of ours they would differ from run to run.
    "svg.hashsalt": "bench",
    # What the layout is measured with; a machine without it shows its own.
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": GROUND,
    "axes.facecolor": GROUND,
    "grid.color": GRID,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_MARKERS = "osD^vPXh"
_folder = FOLDER


def draw_into(folder: Path) -> None:
    """Where plots go whose path is relative, instead of bench/plots."""
    global _folder
    _folder = folder


def line_plot(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log_x: bool = False,
    log_y: bool = False,
    promise: float | None = None,
) -> None:
    """One line for each of the *series*, which are points. *promise* is a dashed line across. *path* is in bench/plots.

    A linear axis of y begins at nothing, so that proportions can be seen.
    """
    figure, axes = _axes(title, x_label, y_label, grid="both")
    for number, (name, points) in enumerate(series.items()):
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, label=name, color=_colour(number), marker=_MARKERS[number % len(_MARKERS)], markersize=4)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if promise is not None:
        axes.axhline(promise, color=PROMISE, linestyle="--", linewidth=1, label=f"promised: {_number(promise)}")
    _number_axis(axes.xaxis)
    _number_axis(axes.yaxis)
    _legend(axes)
    _save(figure, path)


def bar_plot(
    path: Path,
    title: str,
    y_label: str,
    groups: Mapping[str, Mapping[str, float]],
    *,
    promise: float | Mapping[str, float] | None = None,
    log_y: bool = False,
) -> None:
    """Bars in *groups*: ``{"known head": {"nginx": 1.0, "ostiary": 1.8}}``. A group may lack a bar.

    *promise* is a dashed line across all groups, or one across each that it names.
    """
    figure, axes = _axes(title, "", y_label, grid="y")
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        at = [
            place + (number - (len(names) - 1) / 2) * width
            for place, bars in enumerate(groups.values())
            if name in bars
        ]
        heights = [bars[name] for bars in groups.values() if name in bars]
        bars = axes.bar(at, heights, width * 0.92, label=name, color=_colour(number))
        axes.bar_label(bars, labels=[_short(height) for height in heights], padding=1, fontsize=7)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0)
    if log_y:
        axes.set_yscale("log")
    promises = promise if isinstance(promise, Mapping) else {name: promise for name in groups if promise is not None}
    label: str | None = "promised"
    for place, name in enumerate(groups):
        if name in promises:
            axes.hlines(promises[name], place - 0.45, place + 0.45, PROMISE, "--", linewidth=1, label=label)
            label = None
    _number_axis(axes.yaxis)
    _legend(axes)
    _save(figure, path)


def _axes(title: str, x_label: str, y_label: str, *, grid: Literal["both", "y"]) -> tuple[Any, Any]:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(_SETTINGS)
    # A figure without pyplot: nothing is kept from one to the next, and no window system is looked for.
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, axis=grid)
    return figure, axes


def _colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _number_axis(axis: Any) -> None:
    """Numbers as people write them, in one piece of text each: 10,000 and not a power of ten."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axis.set_minor_locator(NullLocator())


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _short(value: float) -> str:
    """Narrow enough for a bar."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def _legend(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)


def _save(figure: Any, path: Path) -> None:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    place = _folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(_styled(out.getvalue()))


def _styled(text: str) -> str:
    """With the style sheet in the place of the colours."""
    for placeholder, (name, _, _) in COLOURS.items():
        text = text.replace(placeholder, f"var(--{name})")
    light, dark = ("".join(f"--{name}:{shades[ground]};" for name, *shades in COLOURS.values()) for ground in range(2))
    sheet = f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return text.replace('<style type="text/css">', f'<style type="text/css">{sheet}', 1)
