"""Templates: every value is escaped once, and a page allows only what we wrote."""

from __future__ import annotations

import pytest

from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.page import page
from ostiary_gateway.login.pages.templates import fill


def test_a_value_is_escaped_and_markup_is_not() -> None:
    hostile = fill("link.html", url='/auth?a="><script>', text="<b>&</b>")
    assert "<script>" not in hostile
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in hostile
    assert "<b>bold</b>" in fill("link.html", url="/auth", text=Markup("<b>bold</b>"))


def test_a_value_is_never_taken_for_a_template() -> None:
    assert "{{url}}" in fill("link.html", url="/auth", text="{{url}}")


@pytest.mark.parametrize("values", [{"url": "/auth"}, {"url": "/auth", "text": "a", "more": "b"}])
def test_a_name_that_is_missing_or_too_many_is_our_mistake(values: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=r"link\.html"):
        fill("link.html", **values)


def test_rows_are_put_together_as_markup() -> None:
    assert join([Markup("<a>"), NOTHING, Markup("<b>")]) == "<a><b>"
    assert isinstance(join([]), Markup)


def test_each_page_has_a_nonce_of_its_own() -> None:
    first, second = (page("Title", NOTHING).header("Content-Security-Policy") for _ in range(2))
    assert first != second


def test_a_private_page_tells_nobody_where_a_link_comes_from() -> None:
    assert page("Title", NOTHING, private=True).header("Referrer-Policy") == "no-referrer"
    assert page("Title", NOTHING).header("Referrer-Policy") == "same-origin"


def test_forms_lead_to_us_and_to_the_one_named_address() -> None:
    policy = page("Title", NOTHING, forms_lead_to="http://127.0.0.1:8000").header("Content-Security-Policy") or ""
    assert "form-action 'self' http://127.0.0.1:8000;" in policy
    assert "form-action 'self';" in (page("Title", NOTHING).header("Content-Security-Policy") or "")
