"""Hatchling metadata hook for the README and the URLs of the project.

``home`` of this hook in pyproject.toml is the URL of the public repository. If it is set, the hook fills in
``[project.urls]`` and makes the README's relative links absolute, because PyPI shows the README without the other
files. If it is empty, the README is unchanged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A Markdown link or image with a relative target: it has no scheme and is not an anchor in the page itself.
_RELATIVE = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<path>[^)\s]+)\)")


class PublishedMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        home = str(self.config["home"])
        text = absolute_links((root / "README.md").read_text(), home=home, tag=f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(home)


def absolute_links(text: str, *, home: str, tag: str) -> str:
    """Return *text* with its relative links pointing to *home* at the release *tag*; unchanged if *home* is empty."""
    if not home:
        return text

    def absolute(link: re.Match[str]) -> str:
        # The page of a file, or the raw bytes of an image.
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
