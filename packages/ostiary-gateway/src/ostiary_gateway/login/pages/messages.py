"""Texts of the pages in the user's language: one file per language, ``assets/messages/<language>.toml``.

    say("sessions.about", user=name)          the text with this id, with its values escaped
    counted("admin.session_count", 3)         the text for a number: ids end in .zero, .one and .other
    translated("page not found")              an error message, which the code has in English
    [[sessions.about]]                        in a template: the text, with the values of the template

The language is set per request with `speaking`. A new text needs a line in every language file;
tests/project/test_messages.py checks that. Errors are English in code, JSON and logs. `translated` recognizes those of
the section ``[refusals]``; messages of third-party plugins stay English.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files

from ostiary.core.languages import LANGUAGES
from ostiary_gateway.login.pages.markup import Markup, escape

# Longer sentences are not looked up. They may come from an IdP.
LONGEST_SENTENCE = 500
_VALUE = re.compile(r"\{([a-z_]+)\}")
_REFUSALS = "refusals."

_language: ContextVar[str] = ContextVar("language", default=LANGUAGES[0])


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Set the language of all texts until the block ends. *language* is one of `LANGUAGES`."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def spoken() -> str:
    """Return the language of this request."""
    return _language.get()


def say(message: str, **values: str) -> Markup:
    """Return the text with the id *message*. *values* must be exactly the values in the text."""
    text = catalogue(spoken())[message]
    names = values_in(text)
    assert names == set(values), f"{message}: {sorted(names ^ set(values))}"
    return fill_values(text, values)


def counted(message: str, number: int) -> Markup:
    """Return the text for *number* things. Languages have one singular and one plural form; zero may have its own."""
    texts = catalogue(spoken())
    form = "zero" if number == 0 and f"{message}.zero" in texts else "one" if number == 1 else "other"
    return fill_values(texts[f"{message}.{form}"], {"count": str(number)})


def fill_values(text: str, values: Mapping[str, str]) -> Markup:
    """Insert the values in one pass: inserted text is never expanded again."""
    return Markup(_VALUE.sub(lambda match: escape(values[match[1]]), text))


def translated(sentence: str) -> str:
    """Translate an English *sentence* for this request; return it unchanged if there is no translation. Not HTML."""
    if spoken() == LANGUAGES[0] or len(sentence) > LONGEST_SENTENCE:
        return sentence
    message, values = recognized(sentence)
    if not message:
        return sentence
    # A value may itself be a sentence that has a translation.
    return _VALUE.sub(lambda match: translated(values[match[1]]), catalogue(spoken())[message])


def sentence(text: str) -> str:
    """Return an English error as a sentence in the language of the request."""
    words = translated(text)
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def recognized(sentence: str) -> tuple[str, Mapping[str, str]]:
    """Return the id of an English *sentence* among the error messages, and its values.

    The id is empty if there is none.
    """
    exact, patterns = _refusals()
    if sentence in exact:
        return exact[sentence], {}
    for message, pattern in patterns:
        if match := pattern.fullmatch(sentence):
            return message, match.groupdict()
    return "", {}


def values_in(text: str) -> set[str]:
    return set(_VALUE.findall(text))


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return all texts of *language* by id."""
    content = files(__package__).joinpath("assets", "messages", f"{language}.toml").read_text(encoding="utf-8")
    return dict(_flat(tomllib.loads(content)))


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, str):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")


@cache
def _refusals() -> tuple[Mapping[str, str], tuple[tuple[str, re.Pattern[str]], ...]]:
    """Return the error messages: those without values by text, the others as patterns, longest first."""
    texts = {text: message for message, text in catalogue(LANGUAGES[0]).items() if message.startswith(_REFUSALS)}
    exact = {text: message for text, message in texts.items() if not values_in(text)}
    others = sorted(texts.keys() - exact.keys(), key=len, reverse=True)
    return exact, tuple((texts[text], _pattern(text)) for text in others)


def _pattern(text: str) -> re.Pattern[str]:
    parts = _VALUE.split(text)
    literals, names = parts[::2], parts[1::2]
    return re.compile(
        re.escape(literals[0])
        + "".join(f"(?P<{name}>.+?){re.escape(literal)}" for name, literal in zip(names, literals[1:], strict=True)),
        re.DOTALL,
    )
