"""Claims in every spelling, as patterns: what they match is what our own proxy takes for the same name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.cli.proxy_config.layout import any_spelling, regular_expression
from ostiary_gateway.extauth.claims import CLEARED
from ostiary_gateway.http1.headers import normal_name

# What the name of a header may hold besides letters and digits.
ODD = "!#$%&'*+-.^_`|~"


@given(name=st.sampled_from(CLEARED), odd=st.text(ODD, min_size=12, max_size=12))
def test_a_name_is_matched_however_its_dashes_are_written(name: str, odd: str) -> None:
    marks = iter(odd)
    spelled = "".join(next(marks) if letter == "-" else letter for letter in name)
    assert normal_name(spelled.encode()) == name.encode()
    assert re.fullmatch(any_spelling(name), spelled)
    assert re.fullmatch(regular_expression(CLEARED), spelled)


@given(st.text("abx1-._", min_size=1, max_size=5))
def test_nothing_else_is_matched(spelled: str) -> None:
    for name in ("x-a", "x-b-1", "ab"):
        assert bool(re.fullmatch(any_spelling(name), spelled)) == (normal_name(spelled.encode()) == name.encode())
