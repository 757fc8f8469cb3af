"""The look of the pages, ready to be put into them: what `PagesSettings` says, with the images read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ostiary.gateway.look.colours import DARK_ACCENT, LIGHT_ACCENT, text_on
from ostiary.gateway.look.languages import LANGUAGES

# HAProxy gets a page in a frame of 16 KiB, of which the rest of a page takes less than 10.
MOST_CARRIED = 5 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """Images are ``data:`` addresses; empty where there is none."""

    name: str = "ostiary"
    logo: str = field(default="", repr=False)
    favicon: str = field(default="", repr=False)
    accent: str = LIGHT_ACCENT
    accent_dark: str = DARK_ACCENT
    help: str = ""
    support: str = ""
    languages: tuple[str, ...] = LANGUAGES

    def for_other_proxies(self) -> Look:
        """The same for pages that a proxy carries whole in a buffer of its own, without images that do not fit."""
        return self if len(self.logo) + len(self.favicon) <= MOST_CARRIED else replace(self, logo="", favicon="")

    @property
    def colours(self) -> Mapping[str, str]:
        """The values of the style sheet that the operator decides."""
        return {
            "accent": self.accent,
            "on_accent": text_on(self.accent),
            "accent_dark": self.accent_dark,
            "on_accent_dark": text_on(self.accent_dark),
        }


DEFAULT_LOOK = Look()
