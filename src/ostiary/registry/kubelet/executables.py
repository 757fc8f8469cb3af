"""Finds the executable of a credential provider on PATH, if it is not in the bin dir. The kubelet looks only there."""

from __future__ import annotations

import os

from ostiary.core.process.executable import find_executable


def find_provider(name: str, bin_dir: str) -> str:
    """The file of the provider *name*. What is in *bin_dir* comes first; the current directory is never searched.

    A file that is nowhere is named as one of *bin_dir*: starting it tells what is wrong.
    """
    path = os.path.join(bin_dir, name)
    if os.path.dirname(name) or os.path.lexists(path):
        return path
    return find_executable(name) or path
