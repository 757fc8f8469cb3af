"""The look, as it goes into a page."""

from __future__ import annotations

from dataclasses import replace

from ostiary_gateway.config.branding import MOST_CARRIED, Branding
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.pages.page import reading

HAPROXY_FRAME = 16 * 1024 - 512


def test_a_page_that_another_proxy_carries_fits_into_its_buffer() -> None:
    small = Branding(name="x" * 60, logo="l" * MOST_CARRIED, support="s" * 300, help="https://help.example.com")
    large = replace(small, favicon="f")
    assert small.for_other_proxies() == small
    assert large.for_other_proxies() == replace(small, logo="")
    refusal = answers.error(403, f"you are signed in as {'u' * 100}, and have no permission for this page")
    for language in ("en", "de"):
        with reading(small, language, {}):
            page = views.application_error(refusal, "0" * 36, front="/")
        assert sum(len(name) + len(value) + 4 for name, value in page.headers) + len(page.body) < HAPROXY_FRAME
