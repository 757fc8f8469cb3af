"""Languages of the pages, and content negotiation with ``Accept-Language``. Pure.

Each language has a file ``login/pages/assets/messages/<language>.toml`` in the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence

# The first is the default, unless the operator configures another.
LANGUAGES = ("en", "de")
# Only the start of a longer header is parsed.
LONGEST_ACCEPT = 500
MOST_RANGES = 20


def preferred(accepted: str, offered: Sequence[str]) -> str:
    """Return which of *offered* a browser prefers by its ``Accept-Language`` (RFC 9110, section 12.5.4)."""
    best, quality = offered[0], 0.0
    for item in accepted[:LONGEST_ACCEPT].split(",")[:MOST_RANGES]:
        language, *parameters = (part.strip().lower() for part in item.split(";"))
        wanted = _quality(parameters)
        language = offered[0] if language == "*" else language.partition("-")[0]
        if language in offered and wanted > quality:
            best, quality = language, wanted
    return best


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value) if 0 <= float(value) <= 1 else 0.0
            except ValueError:
                return 0.0
    return 1.0
