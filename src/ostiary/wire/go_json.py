"""JSON as Go's encoder writes it, for bytes that must equal what kubectl and the kubelet hand over."""

from __future__ import annotations

import json
from typing import Any

# Go escapes these in every string, so that JSON can stand in HTML and JavaScript.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def go_json(value: Any) -> str:
    """Compact JSON, escaped as Go escapes it; the keys stay in their order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES)


def indented_go_json(value: Any) -> str:
    """The same for people: two spaces for each level."""
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_ESCAPES)
