"""Text that is HTML already, and text that has to become so. Pure.

Called by the messages and the templates. Only this package makes a `Markup`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING = Markup("")


def escape(value: str) -> str:
    return value if isinstance(value, Markup) else html.escape(value, quote=True)


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))
