"""Texts in the language of the request, and English sentences of errors that are recognized."""

from __future__ import annotations

import pytest

from ostiary_gateway.login.pages.markup import Markup
from ostiary_gateway.login.pages.messages import LONGEST_SENTENCE, counted, say, sentence, speaking, spoken, translated


def test_a_text_is_in_the_language_of_the_block() -> None:
    assert say("sign_in.title") == "Sign in"
    with speaking("de"):
        assert (spoken(), say("sign_in.title")) == ("de", "Anmelden")
    assert spoken() == "en"


def test_values_are_escaped_unless_they_are_markup() -> None:
    assert say("sign_in.with", name="<i>") == "Sign in with &lt;i&gt;"
    assert say("sign_in.with", name=Markup("<b>x</b>")) == "Sign in with <b>x</b>"
    assert say("sign_in.with", name="{gateway}") == "Sign in with {gateway}"


@pytest.mark.parametrize("values", [{}, {"name": "a", "more": "b"}])
def test_a_value_that_is_missing_or_too_many_is_our_mistake(values: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=r"sign_in\.with"):
        say("sign_in.with", **values)


def test_numbers_have_the_form_of_the_language() -> None:
    assert [counted("admin.session_count", number) for number in (0, 1, 2)] == [
        "No sessions",
        "One session",
        "2 sessions",
    ]
    with speaking("de"):
        assert [counted("time.minutes", number) for number in (0, 1, 5)] == ["0 Minuten", "1 Minute", "5 Minuten"]


def test_a_sentence_of_an_error_is_recognized_with_its_values() -> None:
    english = "GitHub returned no code: start again"
    assert translated(english) == english
    with speaking("de"):
        assert translated(english) == "GitHub hat keinen Code zurückgegeben: Beginnen Sie von vorn"
        assert sentence("page not found") == "Diese Seite gibt es nicht."


def test_a_value_that_is_a_sentence_of_ours_is_translated_too() -> None:
    with speaking("de"):
        words = translated('verbs come first and in lower case, as in "get,list pods -n shop"')
    assert words.endswith('Kleinbuchstaben, zum Beispiel "get,list pods -n shop"')


def test_a_sentence_of_a_foreign_plugin_stays_as_it_is() -> None:
    with speaking("de"):
        assert translated("your badge has no photograph") == "your badge has no photograph"
        long = "X" * LONGEST_SENTENCE + " did not sign you in: x"
        assert translated(long) == long


def test_what_comes_from_outside_is_no_placeholder() -> None:
    with speaking("de"):
        assert translated("{system} did not sign you in: {error}") == "{system} hat Sie nicht angemeldet: {error}"
