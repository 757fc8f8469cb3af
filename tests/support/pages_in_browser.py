"""A gateway whose pages a person uses in Chromium, and what each of its pages must hold to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.chromium import Chromium
from tests.support.gateway import InProcessGateway, password
from tests.support.page_checks import LARGEST_PAGE, check_page

# With OSTIARY_PICTURES=1 the pictures of the documentation are taken anew.
PICTURES = Path(__file__).parents[2] / "docs" / "images"


@dataclass
class PagesInBrowser:
    """*shown* are the pictures of the documentation: the name of a page and its look."""

    gateway: InProcessGateway
    chromium: Chromium
    url: str
    shown: frozenset[str] = frozenset()
    largest: int = LARGEST_PAGE

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
        check_page(self.chromium, name, largest=self.largest, pictures=self._picture)

    def _picture(self, name: str) -> Path | None:
        wanted = os.environ.get("OSTIARY_PICTURES") and name in self.shown
        return PICTURES / f"{name}.png" if wanted else None
