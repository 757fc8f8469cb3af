"""Colours of the operator's own, and whether people can read what is written in them. Pure.

Called by the settings and by the page. The figures are those of WCAG 2.2: 4.5 to 1 for text (success criterion 1.4.3,
level AA). An accent is the colour of links on the page, and what the text of a button stands on.
"""

from __future__ import annotations

import re

LEAST_CONTRAST = 4.5
LIGHT_ACCENT, DARK_ACCENT = "#0b57a4", "#7ab8ff"
# What an accent must be readable on: the least favourable of page and card, in assets/style.css.
LIGHT_BACKGROUND, DARK_BACKGROUND = "#f4f5f7", "#1d232b"
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_ON_ACCENT = ("#ffffff", "#0c1a29")


def parse_colour(text: str) -> str:
    """``#rrggbb`` in small letters; raises `ValueError`."""
    if not _HEX.fullmatch(text):
        raise ValueError("it is not a colour")
    return text.lower()


def contrast(one: str, other: str) -> float:
    """How well two colours can be told apart: 1 for the same, 21 for black and white."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(accent: str) -> str:
    """The colour of the text on a button."""
    return max(_ON_ACCENT, key=lambda text: contrast(text, accent))


def is_readable(accent: str, background: str) -> bool:
    return contrast(accent, background) >= LEAST_CONTRAST


def readable_shade(accent: str, background: str) -> str:
    """The shade nearest to *accent* that can be read on *background*: what to write in its place."""
    target = 0 if _luminance(background) > 0.5 else 255
    for step in range(101):
        shade = "#" + "".join(f"{round(part + (target - part) * step / 100):02x}" for part in _parts(accent))
        if is_readable(shade, background):
            return shade
    raise AssertionError("black and white can be read")


def _luminance(colour: str) -> float:
    red, green, blue = (_linear(part / 255) for part in _parts(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return float(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
