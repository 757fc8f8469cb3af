"""The rules about what stands on an exec plugin's stdout: one object, each key once, and nothing around it.

Called by `rules`, which lists them with all the others.
"""

from __future__ import annotations

import json

from ostiary.client.exec.evidence import PluginRun
from ostiary.core.conformance import NothingToJudge, Wrong, wrong_if


def _object_at(text: str) -> tuple[str, object, str] | None:
    """What stands before the first JSON object in *text*, the object, and what stands after it."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
            return text[:start].strip(), value, text[end:].strip()
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
    return None


def _surroundings(run: PluginRun) -> tuple[str, str] | None:
    """The text around the JSON object, if there is one and something stands around it."""
    if run.fields is not None:
        return None
    parts = _object_at(run.text)
    if parts is None or not _looks_like_an_answer(parts[1]):
        return None
    before, _, after = parts
    # Another object is not a remark: which of the two would be the answer?
    return None if after.startswith(("{", "[")) or before.endswith("[") else (before, after)


def _looks_like_an_answer(value: object) -> bool:
    return isinstance(value, dict) and ("status" in value or "apiVersion" in value or "kind" in value)


def check_one_object(run: PluginRun) -> Wrong | None:
    if run.fields is not None or _surroundings(run) is not None:
        return None
    return Wrong(run.broken["one-object-on-stdout"].cause)


def check_before(run: PluginRun) -> Wrong | None:
    around = _surroundings(run)
    return wrong_if(around is not None and bool(around[0]), "there is text before the JSON object")


def check_after(run: PluginRun) -> Wrong | None:
    around = _surroundings(run)
    return wrong_if(around is not None and bool(around[1]), "there is text after the JSON object")


def check_duplicates(run: PluginRun) -> Wrong | None:
    repeated = False

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeated
        by_key = dict(pairs)
        repeated = repeated or len(by_key) != len(pairs)
        return by_key

    try:
        json.loads(run.text, object_pairs_hook=note)
    except (ValueError, RecursionError):
        # After a byte order mark it is read as YAML, which takes more.
        raise NothingToJudge from None
    return wrong_if(repeated, "duplicate key in an object")
