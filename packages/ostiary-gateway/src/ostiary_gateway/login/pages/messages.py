"""What people read on the pages, in their language: one file per language, ``assets/messages/<language>.toml``.

    say("sessions.about", user=name)          the text with this id, with its values escaped
    counted("admin.session_count", 3)         the same for a number: ids end in .zero, .one and .other
    translated("page not found")              a sentence of an error, which the code has in English
    [[sessions.about]]                        in a template: the text, with the values of the template

Called by the templates and the views. The language is that of the request, `speaking`. A new text is a line in
``en.toml`` and in every other language; tests/project/test_messages.py fails until each language has it with the same
values, and something uses it.

Errors travel as English sentences, because programs and logs get them as they are. `translated` recognizes those of the
section ``[refusals]``, whoever raised them. What a foreign plugin says in words of its own stays English.
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

# Longer sentences are not looked up. They can come from an identity system.
LONGEST_SENTENCE = 500
_VALUE = re.compile(r"\{([a-z_]+)\}")
_REFUSALS = "refusals."

_language: ContextVar[str] = ContextVar("language", default=LANGUAGES[0])


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """All texts are in *language*, one of `LANGUAGES`, until the block ends."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def spoken() -> str:
    """The language of this request."""
    return _language.get()


def say(message: str, **values: str) -> Markup:
    """The text with the id *message*. Each value in it must be given, and each that is given must be in it."""
    text = catalogue(spoken())[message]
    names = values_in(text)
    assert names == set(values), f"{message}: {sorted(names ^ set(values))}"
    return fill_values(text, values)


def counted(message: str, number: int) -> Markup:
    """The text for *number* things. Both languages have one form for one and one for more; zero may have its own."""
    texts = catalogue(spoken())
    form = "zero" if number == 0 and f"{message}.zero" in texts else "one" if number == 1 else "other"
    return fill_values(texts[f"{message}.{form}"], {"count": str(number)})


def fill_values(text: str, values: Mapping[str, str]) -> Markup:
    """In one pass: what is put in is never looked at again."""
    return Markup(_VALUE.sub(lambda match: escape(values[match[1]]), text))


def translated(sentence: str) -> str:
    """*sentence*, which is English, in the language of this request; as it is where we have no other. Not HTML."""
    if spoken() == LANGUAGES[0] or len(sentence) > LONGEST_SENTENCE:
        return sentence
    message, values = recognized(sentence)
    if not message:
        return sentence
    # A value may be a sentence of ours again.
    return _VALUE.sub(lambda match: translated(values[match[1]]), catalogue(spoken())[message])


def sentence(text: str) -> str:
    """An error, which is English, as a sentence in the language of the request."""
    words = translated(text)
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def recognized(sentence: str) -> tuple[str, Mapping[str, str]]:
    """The id of an English *sentence* among the refusals, and the values in it; an empty id if there is none."""
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
    """All texts of *language* by their ids."""
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
    """The sentences of the refusals: those without values by their text, the others as patterns, the longest first."""
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
