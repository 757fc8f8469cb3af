"""The settings ``pages``: what the operator decides of the pages that people see. All of it may be left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import FilePath, Parsed, Text, Texts
from ostiary.gateway.look.colours import (
    DARK_ACCENT,
    DARK_BACKGROUND,
    LEAST_CONTRAST,
    LIGHT_ACCENT,
    LIGHT_BACKGROUND,
    contrast,
    is_readable,
    parse_colour,
    readable_shade,
)
from ostiary.gateway.look.images import LARGEST_FILE, image_or_none, read_image
from ostiary.gateway.look.languages import LANGUAGES
from ostiary.gateway.look.look import Look

LONGEST_NAME = 60
LONGEST_SUPPORT = 300
# The bundled ones: login/pages/assets/icons.
ICONS = ("building", "certificate", "cloud", "code", "directory", "key", "people", "person")
_IMAGE = f"PNG, SVG or WebP, at most {LARGEST_FILE // 1024} KiB"
_COLOUR_HINT = "write it as in '#0b57a4', with quotes: a # begins a comment otherwise"


def _colour(doc: str) -> Parsed[str]:
    return Parsed(doc, parse_colour, pattern="^#[0-9a-fA-F]{6}$", hint=_COLOUR_HINT, kind="colour")


@dataclass(frozen=True, slots=True)
class PagesSettings:
    name: Annotated[str, Text("what people call this gateway, at the top and in the title of each page")] = "ostiary"
    logo: Annotated[
        Path | None, FilePath(f"an image at the top of each page, beside the name: {_IMAGE}", unset="a plain door")
    ] = None
    favicon: Annotated[
        Path | None, FilePath(f"the image in the tab of the browser: {_IMAGE}", unset="a door in the accent colour")
    ] = None
    accent: Annotated[
        str, _colour("the colour of buttons and links; what cannot be read on a light page is refused (WCAG AA)")
    ] = LIGHT_ACCENT
    accent_dark: Annotated[str, _colour("the same where people prefer dark pages")] = DARK_ACCENT
    help: Annotated[
        str,
        Text(
            "where people get help: a link on each page",
            pattern=r"(https?://|mailto:)[^\s\"'<>]+",
            mistake="it is neither a web address nor mailto:",
            unset="none",
        ),
    ] = ""
    support: Annotated[str, Text("a sentence on each page: whom to ask, which rules hold", unset="none")] = ""
    languages: Annotated[
        tuple[str, ...],
        Texts(
            "the languages that people can choose; the first is for those whose browser asks for none of them."
            f" There are {' and '.join(f'`{each}`' for each in LANGUAGES)}",
            pattern="|".join(LANGUAGES),
            mistake="unknown language",
            hint=f"there are {', '.join(LANGUAGES)}",
            repeated="duplicate entry",
            empty_list="an empty list would leave no language",
        ),
    ] = LANGUAGES

    def check(self, fields: Fields) -> None:
        for text, most, key in ((self.name, LONGEST_NAME, "name"), (self.support, LONGEST_SUPPORT, "support")):
            if len(text) > most or not text.isprintable():
                fields.problem(f"it is longer than {most} characters, or has some that cannot be shown", key)
        for colour, background, key in (
            (self.accent, LIGHT_BACKGROUND, "accent"),
            (self.accent_dark, DARK_BACKGROUND, "accentDark"),
        ):
            if not is_readable(colour, background):
                ratio = f"{contrast(colour, background):.1f}"
                message = f"it cannot be read on the page: its contrast is {ratio}, and {LEAST_CONTRAST} is needed"
                fields.problem(message, key, f"use a shade such as '{readable_shade(colour, background)}'")
        for path, key in ((self.logo, "logo"), (self.favicon, "favicon")):
            if path is not None and fields.is_right(key):
                check_image(path, fields, key)

    def look(self) -> Look:
        return Look(
            name=self.name,
            logo=image_or_none(self.logo),
            favicon=image_or_none(self.favicon),
            accent=self.accent,
            accent_dark=self.accent_dark,
            help=self.help,
            support=self.support,
            languages=self.languages,
        )


def check_image(path: Path, fields: Fields, key: str) -> None:
    try:
        read_image(path)
    except ValueError as mistake:
        fields.problem(str(mistake), key)
