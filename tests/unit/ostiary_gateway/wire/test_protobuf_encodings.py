"""Which text stands in YAML without quotes."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ostiary_gateway.wire.protobuf import _is_plain

WORDS = st.text(alphabet="aeyn1.-/0oxTf: #", max_size=8)


@given(st.one_of(WORDS, st.text(max_size=20)))
@example("yes")
@example("No")
@example("1e5")
@example("pods/log")
def test_what_is_plain_is_what_the_dumper_takes_for_plain(text: str) -> None:
    dumped = yaml.safe_dump(text, default_flow_style=True, width=float("inf"), allow_unicode=True)
    assert _is_plain(text) == dumped.startswith(text)
