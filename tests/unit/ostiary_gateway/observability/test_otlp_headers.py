"""The headers for a collector: what may stand in the file, and that its text is never quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.observability.otlp_headers import read_headers


def test_each_line_is_a_header(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# a key\n\nX-Api-Key: 123 456 \r\nAuthorization:\tBearer abc\n")
    assert read_headers(path) == {"x-api-key": "123 456", "authorization": "Bearer abc"}


def test_anything_else_is_a_mistake_that_is_not_quoted(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("X-Api-Key 123", "line 1 is not a header"),
        ("X-Api-Key:", "line 1 is not a header"),
        (": 123", "line 1 is not a header"),
        ("X Api: 123", "line 1 is not a header"),
        ("\nX-Api-Key: 1\x7f23", "line 2 is not a header"),
        ("X-Api-Key: \xe4", "line 1 is not a header"),
        ("Content-Type: 123", "line 1 sets a header that is set already"),
        ("Host: 123", "line 1 sets a header that is set already"),
        ("A: 123\na: 123", "line 2 sets a header that is set already"),
    ]
    for text, mistake in cases:
        with subtests.test(text=text, mistake=mistake):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "headers"
            path.write_text(text, encoding="latin-1")
            with pytest.raises(ValueError, match="line") as caught:
                read_headers(path)
            assert str(caught.value) == mistake
