"""HTML templates in ``assets/``.

In a template ``{{name}}`` is a value and ``[[home.title]]`` a text of `ostiary_gateway.login.pages.messages` in the
language of the request. Every value is escaped unless it is a `Markup`. There are no loops: a row is a template, and
`join` concatenates rows.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ostiary.core.languages import LANGUAGES
from ostiary_gateway.login.pages.markup import Markup, escape
from ostiary_gateway.login.pages.messages import catalogue, fill_values, spoken, values_in

_NAME = re.compile(r"\{\{([a-z_]+)\}\}")
_MESSAGE = re.compile(r"\[\[([a-z0-9_.]+)\]\]")
_PLACE = re.compile(f"{_NAME.pattern}|{_MESSAGE.pattern}")


def fill(template: str, **values: str) -> Markup:
    """Render a template. *values* must be exactly the names in it."""
    names = _names(template)
    assert names == set(values), f"{template}: {sorted(names ^ set(values))}"
    texts = catalogue(spoken())

    def put(place: re.Match[str]) -> str:
        return escape(values[place[1]]) if place[1] else fill_values(texts[place[2]], values)

    # One pass: inserted text is never expanded again.
    return Markup(_PLACE.sub(put, asset(template)))


@cache
def _names(template: str) -> set[str]:
    """Return the values that *template* needs for itself and for its texts."""
    text, texts = asset(template), catalogue(LANGUAGES[0])
    return set(_NAME.findall(text)).union(*(values_in(texts[message]) for message in _MESSAGE.findall(text)))


@cache
def asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
