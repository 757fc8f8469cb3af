"""What every page must hold to, in a real browser: axe, no scrolling sideways, no errors, a small size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.chromium import DESKTOP, PHONE, Chromium

# With OSTIARY_PAGES set to a folder, a picture of every page in every look is put there.
FOLDER = os.environ.get("OSTIARY_PAGES", "")
LARGEST_PAGE = 30_000
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"colorScheme": "light", "viewport": DESKTOP},
    "dark": {"colorScheme": "dark", "viewport": DESKTOP},
    "phone": {"colorScheme": "light", "viewport": PHONE},
}


def _all_pictures(picture: str) -> Path | None:
    return Path(FOLDER) / f"{picture}.png" if FOLDER else None


def check_page(
    chromium: Chromium,
    name: str,
    *,
    largest: int = LARGEST_PAGE,
    alone: bool = True,
    pictures: Callable[[str], Path | None] = _all_pictures,
) -> None:
    """Nothing on the page is broken, for anybody. *pictures* says where one of a name goes, if anywhere.

    Not *alone*: the browser was at pages of others before, whose errors are among those that it tells.
    """
    for look, settings in LOOKS.items():
        chromium("look", **settings)
        # What differs in the dark are the colours.
        rules = ["color-contrast"] if look == "dark" else []
        assert chromium("judged", rules=rules) == [], f"{name}, {look}"
        wide, window = chromium("width")
        assert wide <= window, f"{name}, {look}: it must not be scrolled sideways"
        if path := pictures(f"{name}-{look}"):
            chromium("picture", path=str(path))
    chromium("look", **LOOKS["light"])
    assert chromium("size") <= largest, f"{name}: the page is too large"
    if not alone:
        return
    # A browser tells of every answer that is an error; that is no problem of the page.
    assert [text for text in chromium("problems") if "Failed to load resource" not in text] == [], name
