"""The settings ``pages``: branding and languages of the pages. All of them are optional."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from ostiary.core.languages import LANGUAGES
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.settings.kinds import FilePath, Parsed, Text, Texts

# Accent colours and their contrast, as defined by WCAG 2.2: at least 4.5 to 1 for text (success criterion 1.4.3, level
# AA). The accent is the colour of links, and the background of button text.

LEAST_CONTRAST = 4.5
LIGHT_ACCENT, DARK_ACCENT = "#0b57a4", "#7ab8ff"
# Background with the least contrast to an accent: page or card, in assets/style.css.
LIGHT_BACKGROUND, DARK_BACKGROUND = "#f4f5f7", "#1d232b"
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_ON_ACCENT = ("#ffffff", "#0c1a29")


def parse_colour(text: str) -> str:
    """Parse ``#rrggbb`` and return it in lower case. Raises `ValueError`."""
    if not _HEX.fullmatch(text):
        raise ValueError("it is not a colour")
    return text.lower()


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours: 1 for equal colours, 21 for black and white."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(accent: str) -> str:
    """Return the text colour of a button."""
    return max(_ON_ACCENT, key=lambda text: contrast(text, accent))


def is_readable(accent: str, background: str) -> bool:
    return contrast(accent, background) >= LEAST_CONTRAST


def readable_shade(accent: str, background: str) -> str:
    """Return the shade nearest to *accent* that is readable on *background*, as a suggestion."""
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


# HAProxy receives a page in a frame of 16 KiB, of which a page without images takes less than 10.
MOST_CARRIED = 5 * 1024


@dataclass(frozen=True, slots=True)
class Branding:
    """`PagesSettings` with the images loaded as ``data:`` URLs; empty if there is none."""

    name: str = "ostiary"
    logo: str = field(default="", repr=False)
    favicon: str = field(default="", repr=False)
    accent: str = LIGHT_ACCENT
    accent_dark: str = DARK_ACCENT
    help: str = ""
    support: str = ""
    languages: tuple[str, ...] = LANGUAGES

    def for_other_proxies(self) -> Branding:
        """Return the branding for pages that another proxy buffers as a whole, without images that do not fit."""
        return self if len(self.logo) + len(self.favicon) <= MOST_CARRIED else replace(self, logo="", favicon="")

    @property
    def colours(self) -> Mapping[str, str]:
        """The configurable values of the style sheet."""
        return {
            "accent": self.accent,
            "on_accent": text_on(self.accent),
            "accent_dark": self.accent_dark,
            "on_accent_dark": text_on(self.accent_dark),
        }


DEFAULT_LOOK = Branding()

# Images are small files, embedded as ``data:`` URLs. The media type depends on the content, not on the file name. An
# SVG is safe as an image: browsers run no scripts and load nothing in it, and the page's policy allows no other images.
#
# Limit of one file. All images of a page together are limited by MOST_ENCODED.
LARGEST_FILE = 10 * 1024
# Limit for all images of a page, which may have 30 kB.
MOST_ENCODED = 16 * 1024
# Reject a document type with its own definitions: an entity can turn a small file into a huge image.
_SVG = re.compile(rb"\s*(<\?xml[^>]*\?>\s*)?(<!--.*?-->\s*|<!DOCTYPE[^\[>]*>\s*)*<svg[\s/>]", re.DOTALL)


def read_image(path: Path) -> str:
    """Return the file as a ``data:`` URL. Raises `ValueError` if it is too large or not a supported image."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_FILE:
        raise ValueError(f"the image is larger than {LARGEST_FILE // 1024} KiB")
    return f"data:{_media_type(content)};base64,{b64encode(content).decode()}"


def image_or_none(path: Path | None) -> str:
    """Like `read_image`, but for an optional file that was already checked; empty if there is none."""
    try:
        return "" if path is None else read_image(path)
    except ValueError:
        return ""


def _media_type(content: bytes) -> str:
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if _SVG.match(content.removeprefix(b"\xef\xbb\xbf")):
        return "image/svg+xml"
    raise ValueError("it is neither PNG nor SVG nor WebP")


LONGEST_NAME = 60
LONGEST_SUPPORT = 300
# The bundled icons in login/pages/assets/icons.
ICONS = ("building", "certificate", "cloud", "code", "directory", "key", "people", "person")
_IMAGE = f"PNG, SVG or WebP, at most {LARGEST_FILE // 1024} KiB"
_COLOUR_HINT = "write it as in '#0b57a4', with quotes: a # begins a comment otherwise"


def _colour(doc: str) -> Parsed[str]:
    return Parsed(doc, parse_colour, pattern="^#[0-9a-fA-F]{6}$", hint=_COLOUR_HINT, kind="colour")


@dataclass(frozen=True, slots=True)
class PagesSettings:
    """The settings ``pages``."""

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

    def check(self, fields: ConfigSection) -> None:
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

    def look(self) -> Branding:
        return Branding(
            name=self.name,
            logo=image_or_none(self.logo),
            favicon=image_or_none(self.favicon),
            accent=self.accent,
            accent_dark=self.accent_dark,
            help=self.help,
            support=self.support,
            languages=self.languages,
        )


def check_image(path: Path, fields: ConfigSection, key: str) -> None:
    try:
        read_image(path)
    except ValueError as mistake:
        fields.problem(str(mistake), key)
