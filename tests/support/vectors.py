"""Verdicts of the real Kubernetes, replayed against our code.

`load` reads a file of ``tests/vectors``, `replay` asks our code about every line of it. A difference that is meant to
stay is listed in ``accepted_differences.json``: per file, the number of the line, the reason, and the decision record.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "vectors"
ACCEPTED = VECTORS / "accepted_differences.json"
_MOST_SHOWN = 20

Vector = dict[str, Any]


def load(name: str) -> list[Vector]:
    """Every line of ``tests/vectors/NAME.jsonl.gz``, in order."""
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt", encoding="ascii") as file:
        return [json.loads(line) for line in file]


def source_of(vector: Vector) -> bytes:
    """The text of a vector as bytes: ``text``, or ``text_base64`` where it is not UTF-8."""
    if "text_base64" in vector:
        return b64decode(vector["text_base64"])
    return str(vector["text"]).encode("utf-8", "surrogatepass")


def accepted(name: str) -> dict[int, str]:
    """The lines of a file, counted from 1, that are meant to differ, and why. Each names its decision record."""
    listed = json.loads(ACCEPTED.read_text("utf-8")).get(name, {})
    return {
        int(line): f"{entry['reason']} ({entry['decision']})"
        for lines, entry in listed.items()
        for line in lines.split()
    }


def parts(name: str, *, size: int = 200) -> list[range]:
    """The lines of a file in parts, for a test whose replay of the whole file would take long."""
    count = len(load(name))
    return [range(start, min(start + size, count + 1)) for start in range(1, count + 1, size)]


def replay(name: str, difference: Callable[[Vector], str | None], *, lines: range | None = None) -> None:
    """Ask *difference* of every line, or of *lines* alone; it says how our answer differs, or None.

    Fails on a difference that is not listed, and on a listed one that is gone.
    """
    vectors = {number: vector for number, vector in enumerate(load(name), start=1) if lines is None or number in lines}
    differences = {number: text for number, vector in vectors.items() if (text := difference(vector)) is not None}
    listed = {number: reason for number, reason in accepted(name).items() if number in vectors}
    new = {number: text for number, text in differences.items() if number not in listed}
    gone = sorted(listed.keys() - differences.keys())
    shown = "\n".join(f"  line {number}: {text}" for number, text in list(new.items())[:_MOST_SHOWN])
    assert not new, f"{name}: {len(new)} lines differ from Kubernetes\n{shown}"
    assert not gone, f"{name}: listed as accepted differences, and they do not differ: {gone}"
