"""Images of the operator's own: known by their content, and small."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from ostiary_gateway.config.branding import LARGEST_FILE, image_or_none, read_image

PNG = b"\x89PNG\r\n\x1a\n rest"
WEBP = b"RIFF\x00\x00\x00\x00WEBP rest"
SVG = b'<?xml version="1.0"?>\n<!-- Acme -->\n<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "svg11.dtd">\n<svg xmlns="http://www.w3.org/2000/svg"/>'


@pytest.mark.parametrize(
    ("content", "media_type"),
    [(PNG, "image/png"), (WEBP, "image/webp"), (SVG, "image/svg+xml"), (b"\xef\xbb\xbf<svg>", "image/svg+xml")],
)
def test_the_content_says_what_a_file_is(tmp_path: Path, content: bytes, media_type: str) -> None:
    path = tmp_path / "logo.txt"
    path.write_bytes(content)
    head, _, encoded = read_image(path).partition(";base64,")
    assert head == f"data:{media_type}"
    assert b64decode(encoded) == content
    assert image_or_none(path) == read_image(path)


def test_what_cannot_be_shown_is_refused(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases = [
        (b"<html><svg></svg>", "neither PNG"),
        (b"GIF89a", "neither PNG"),
        (b"", "neither PNG"),
        (b"RIFF\x00\x00\x00\x00WAVE", "neither PNG"),
        (b'<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "neither PNG"),
        (PNG + b"x" * LARGEST_FILE, "larger than 10 KiB"),
    ]
    for content, mistake in cases:
        with subtests.test(content=content, mistake=mistake):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "logo.png"
            path.write_bytes(content)
            with pytest.raises(ValueError, match=mistake):
                read_image(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_image(tmp_path / "none.png")
    assert image_or_none(None) == ""
