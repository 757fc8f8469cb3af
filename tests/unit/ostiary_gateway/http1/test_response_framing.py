"""Which headers say how the end of an answer is found."""

from __future__ import annotations

import pytest

from ostiary_gateway.http1.response import ENCODING_HEADER, LENGTH_HEADER, NOT_FRAMING, framing_header


def test_framing_is_recognised_in_every_spelling_and_nothing_else_is(subtests: pytest.Subtests) -> None:
    """H1."""
    cases = [
        (b"Content-Length", LENGTH_HEADER),
        (b"content-length", LENGTH_HEADER),
        (b"cOnTeNt-LeNgTh", LENGTH_HEADER),
        (b"Transfer-Encoding", ENCODING_HEADER),
        (b"TRANSFER-ENCODING", ENCODING_HEADER),
        (b"Content_Length", NOT_FRAMING),
        (b"Content-Length2", NOT_FRAMING),
        (b"TE", NOT_FRAMING),
    ]
    for name, kind in cases:
        with subtests.test(name=name, kind=kind):
            assert framing_header(name) == kind
