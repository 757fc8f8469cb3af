from __future__ import annotations

import pytest

from ostiary.model import Secret
from ostiary_gateway.authentication.cookies import cookie_name, cookie_value, presented_cookie
from ostiary_gateway.sessions import APPLICATION_PREFIX, BROWSER_PREFIX, application_digest, new_token

TOKEN = new_token(APPLICATION_PREFIX)
NAME = "__Host-ostiary-app-wiki"
KEEPING = Secret("k" * 43 + "=")


def test_the_token_among_other_cookies_and_several_headers() -> None:
    headers = [(b"cookie", b"a=1"), (b"Cookie", f"b=2; {NAME}={TOKEN.reveal()};c".encode())]
    cookie = presented_cookie(headers, "wiki", secure=True)
    assert cookie is not None
    assert (cookie.digest, cookie.keeping) == (application_digest(TOKEN.reveal(), "wiki"), None)


def test_what_is_set_is_what_is_read() -> None:
    for secure in (True, False):
        name = cookie_name("wiki", secure=secure)
        cookie = presented_cookie(
            [(b"Cookie", f"{name}={cookie_value(TOKEN, KEEPING)}".encode())], "wiki", secure=secure
        )
        assert cookie is not None
        assert cookie.token.reveal() == TOKEN.reveal()
        assert cookie.keeping is not None
        assert cookie.keeping.reveal() == KEEPING.reveal()
        assert TOKEN.reveal() not in repr(cookie)


def test_anything_else_is_no_token(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        NAME,
        f"{NAME}=",
        f"{NAME}=TOKENx",
        f"{NAME}=TOKEN.short",
        f"{NAME}=TOKEN.",
        f"{NAME}=BROWSER",
        f"{NAME}=ACCESS",
        f"{NAME.lower()}=TOKEN",
        "ostiary-app-wiki=TOKEN",
        "__Host-ostiary-app-board=TOKEN",
        f"{NAME}=TOKEN; {NAME}=TOKEN",
        f"{NAME}=TOKEN; {NAME}=",
        f'{NAME}="TOKEN"',
    ]
    for cookies in cases:
        with subtests.test(cookies=cookies):
            others = {"TOKEN": TOKEN, "BROWSER": new_token(BROWSER_PREFIX), "ACCESS": new_token()}
            sent = cookies
            for name, token in others.items():
                sent = sent.replace(name, token.reveal())
            assert presented_cookie([(b"Cookie", sent.encode())], "wiki", secure=True) is None
