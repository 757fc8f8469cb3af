"""The kubectl of this machine, whichever it is."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path


@cache
def find_kubectl() -> str | None:
    """A kubectl that does the work itself.

    Google's package puts a dispatcher in its place, which asks the server for its version, with credentials
    of its own, and then starts the kubectl for that version beside it. Counting plugin runs needs the latter.
    """
    found = shutil.which("kubectl")
    if found is None:
        return None
    path = Path(found).resolve()
    versions = [(int(sibling.name.split(".")[2]), str(sibling)) for sibling in path.parent.glob("kubectl.1.*")]
    return max(versions)[1] if versions else str(path)


@cache
def newest_exec_version() -> str:
    """The newest exec API that this kubectl knows: v1 came with 1.22."""
    command = [str(find_kubectl()), "version", "--client", "-o", "json"]
    shown = subprocess.run(command, capture_output=True, check=True).stdout
    minor = int("".join(c for c in json.loads(shown)["clientVersion"]["minor"] if c.isdigit()))
    return "v1" if minor >= 22 else "v1beta1"
