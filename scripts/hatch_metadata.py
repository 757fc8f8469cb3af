"""Metadata that depends on where the project is published. Called by hatchling for every wheel and source archive.

``home`` of this hook in pyproject.toml is the address of the public repository. While it is empty the README is taken
as it is. Once it is set, the README's relative links lead there, because PyPI shows the README without the files around
it, and ``[project.urls]`` is filled in.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The target of a Markdown link or image that is relative: it has no scheme and is not a place in the page itself.
_RELATIVE = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<path>[^)\s]+)\)")


class PublishedMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        home = str(self.config["home"])
        text = absolute_links((root / "README.md").read_text(), home=home, tag=f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(home)


def absolute_links(text: str, *, home: str, tag: str) -> str:
    """*text* with its relative links led to *home*, at the release they belong to; unchanged if there is no home."""
    if not home:
        return text

    def absolute(link: re.Match[str]) -> str:
        # A page that shows a file, or the bytes of a picture.
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}{link['text']}({home}/{kind}/{tag}/{link['path']})"

    return _RELATIVE.sub(absolute, text)


def urls(home: str) -> dict[str, str]:
    if not home:
        return {}
    return {
        "Source": home,
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Documentation": f"{home}/tree/main/docs",
    }
