"""HTML markup and escaping. Only this package creates `Markup`."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already, so it is not escaped again."""

    __slots__ = ()


NOTHING = Markup("")


def escape(value: str) -> str:
    return value if isinstance(value, Markup) else html.escape(value, quote=True)


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))
