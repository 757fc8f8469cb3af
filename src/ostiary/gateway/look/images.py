"""Images of the operator's own: small files, which become part of the page as a ``data:`` address.

Called by the settings. What a file is says its content and not its name. An SVG is safe there: in an image browsers run
no scripts and load nothing, and the policy of the page allows images from nowhere else.
"""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path

# All pages together with the images must stay small: see MOST_ENCODED.
LARGEST_FILE = 10 * 1024
# Of the 30 kB that a page may have, what is left for all images on it.
MOST_ENCODED = 16 * 1024
# A document type with definitions of its own is not accepted: an entity can make a small file a huge image.
_SVG = re.compile(rb"\s*(<\?xml[^>]*\?>\s*)?(<!--.*?-->\s*|<!DOCTYPE[^\[>]*>\s*)*<svg[\s/>]", re.DOTALL)


def read_image(path: Path) -> str:
    """The file as a ``data:`` address; raises `ValueError` if it is no image that can be shown, or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_FILE:
        raise ValueError(f"the image is larger than {LARGEST_FILE // 1024} KiB")
    return f"data:{_media_type(content)};base64,{b64encode(content).decode()}"


def image_or_none(path: Path | None) -> str:
    """The same for one that has been checked, and may be left out; empty if there is none."""
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
