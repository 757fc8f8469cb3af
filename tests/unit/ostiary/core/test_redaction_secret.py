"""A secret is shown masked, and is read by `reveal` alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ostiary.model import Secret

SECRET = Secret("open-sesame")


def test_a_secret_prints_masked() -> None:
    assert (str(SECRET), repr(SECRET), f"{SECRET!r}", f"{SECRET!s}") == ("Secret(***)",) * 4
    assert repr([SECRET]) == "[Secret(***)]"


@pytest.mark.parametrize("spec", ["", ">20"])
def test_a_secret_cannot_be_formatted_so_that_no_mask_ends_up_in_a_file(spec: str) -> None:
    """The file would look right, and nobody could sign in with it."""
    formattings: list[Callable[[], str]] = [lambda: f"robot:{SECRET:{spec}}", lambda: format(SECRET, spec)]
    for formatting in formattings:
        with pytest.raises(TypeError, match=r"reveal\(\)") as refused:
            formatting()
        assert "sesame" not in str(refused.value)
