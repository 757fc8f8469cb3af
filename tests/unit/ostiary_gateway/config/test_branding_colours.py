"""Colours: the figures of WCAG, and a shade that works in place of one that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ostiary_gateway.login.pages as pages
from ostiary_gateway.config.branding import (
    DARK_ACCENT,
    DARK_BACKGROUND,
    LEAST_CONTRAST,
    LIGHT_ACCENT,
    LIGHT_BACKGROUND,
    contrast,
    is_readable,
    parse_colour,
    readable_shade,
    text_on,
)


@pytest.mark.parametrize(
    ("one", "other", "ratio"), [("#000000", "#ffffff", 21.0), ("#ffffff", "#ffffff", 1.0), ("#777777", "#ffffff", 4.48)]
)
def test_contrast_is_that_of_wcag(one: str, other: str, ratio: float) -> None:
    assert contrast(one, other) == contrast(other, one) == pytest.approx(ratio, abs=0.005)


def test_only_six_hex_digits_are_a_colour(subtests: pytest.Subtests) -> None:
    for text in ["0b57a4", "#fff", "#0b57a4;", "red", "#0b57ag", "var(--x)", ""]:
        with subtests.test(text=text):
            with pytest.raises(ValueError, match="colour"):
                parse_colour(text)
            assert parse_colour("#0B57A4") == "#0b57a4"


@pytest.mark.parametrize(("accent", "background"), [("#ffcc00", LIGHT_BACKGROUND), ("#331100", DARK_BACKGROUND)])
def test_the_shade_that_is_proposed_can_be_read(accent: str, background: str) -> None:
    assert not is_readable(accent, background)
    shade = readable_shade(accent, background)
    assert is_readable(shade, background)
    assert contrast(shade, background) < LEAST_CONTRAST + 0.5, "no further away than it must be"


@pytest.mark.parametrize("background", [LIGHT_BACKGROUND, DARK_BACKGROUND])
def test_the_text_of_a_button_can_be_read_on_every_accent_that_is_accepted(background: str) -> None:
    steps = range(0, 256, 15)
    colours = [f"#{red:02x}{green:02x}{blue:02x}" for red in steps for green in steps for blue in steps]
    accepted = [colour for colour in colours if is_readable(colour, background)]
    assert len(accepted) > 500
    assert min(contrast(text_on(colour), colour) for colour in accepted) >= LEAST_CONTRAST


@pytest.mark.parametrize(("accent", "background"), [(LIGHT_ACCENT, LIGHT_BACKGROUND), (DARK_ACCENT, DARK_BACKGROUND)])
def test_our_own_accents_can_be_read(accent: str, background: str) -> None:
    assert is_readable(accent, background)


def test_the_backgrounds_are_those_of_the_style() -> None:
    style = (Path(pages.__path__[0]) / "assets" / "style.css").read_text()
    assert re.findall(r"--page: (#\w+)", style)[0] == LIGHT_BACKGROUND
    assert re.findall(r"--card: (#\w+)", style)[1] == DARK_BACKGROUND
