"""The bytes of Go's encoder."""

from __future__ import annotations

from ostiary.wire.go_json import go_json


def test_strings_are_escaped_as_go_escapes_them_and_keys_stay_in_order() -> None:
    assert go_json({"z": "<a>&\u2028é\n\x7f", "a": 1}) == '{"z":"\\u003ca\\u003e\\u0026\\u2028é\\n\x7f","a":1}'
