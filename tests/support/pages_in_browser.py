"""A gateway whose pages a person uses in Chromium, and what each of its pages must hold to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.chromium import DESKTOP, PHONE, Chromium
from tests.support.gateway import InProcessGateway, ServedGateway, password

# With OSTIARY_PICTURES=1 the pictures of the documentation are taken anew.
PICTURES = Path(__file__).parents[2] / "docs" / "images"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"colorScheme": "light", "viewport": DESKTOP},
    "dark": {"colorScheme": "dark", "viewport": DESKTOP},
    "phone": {"colorScheme": "light", "viewport": PHONE},
}


@dataclass
class PagesInBrowser:
    """*shown* are the pictures of the documentation: the name of a page and its look."""

    gateway: InProcessGateway | ServedGateway
    chromium: Chromium
    url: str
    shown: frozenset[str] = frozenset()

    def sign_in(self, user: str, provider: str = "staff", **look: Any) -> None:
        """As a new person, with the form."""
        self.chromium.person(**look)
        self.chromium.go(f"{self.url}/auth/{provider}")
        self.fill_in(user)
        assert self.chromium.url == f"{self.url}/auth/token"

    def fill_in(self, user: str, secret: str | None = None) -> None:
        self.chromium.fill("Name", user)
        self.chromium.fill("Password", password(user) if secret is None else secret)
        self.chromium.click("button", "Sign in")

    def looked_at(self, name: str) -> None:
        """Nothing on the page is broken, for anybody; and here is a picture of it."""
        chromium = self.chromium
        for look, settings in LOOKS.items():
            chromium("look", **settings)
            # What differs in the dark are the colours.
            rules = ["color-contrast"] if look == "dark" else []
            assert chromium("judged", rules=rules) == [], f"{name}, {look}"
            wide, window = chromium("width")
            assert wide <= window, f"{name}, {look}: it must not be scrolled sideways"
            if os.environ.get("OSTIARY_PICTURES") and f"{name}-{look}" in self.shown:
                PICTURES.mkdir(exist_ok=True)
                chromium("picture", path=str(PICTURES / f"{name}-{look}.png"))
        chromium("look", **LOOKS["light"])
        # A browser tells of every answer that is an error; that is no problem of the page.
        problems = [text for text in chromium("problems") if "Failed to load resource" not in text]
        assert problems == []
