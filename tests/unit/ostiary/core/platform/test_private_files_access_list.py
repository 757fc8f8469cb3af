"""Access lists as Windows writes them: who else may use a file?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.platform.private_files import EVERYBODY, is_owned_by, only_for, others_in

SID = "S-1-5-21-1004336348-1177238915-682003330-1001"
US = frozenset({SID})
# A file in a profile, as icacls and ConvertSecurityDescriptorToStringSecurityDescriptor show it.
OWN = f"O:{SID}G:{SID}D:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{SID})"


def test_the_list_that_we_write_lets_nobody_else_in() -> None:
    assert others_in(f"O:{SID}{only_for(SID)}", US) == ()


@pytest.mark.parametrize(
    "descriptor",
    [
        OWN,
        f"O:{SID}D:",
        f"O:BAD:(A;;FA;;;{SID})(D;;FA;;;WD)",
        f"O:{SID}D:AI(A;ID;FA;;;OW)(A;OICIIO;GA;;;CO)",
        f"O:{SID}D:P(A;;FA;;;{SID})S:AI(AU;SAFA;FA;;;WD)",
    ],
)
def test_nobody_else(descriptor: str) -> None:
    assert others_in(descriptor, US) == ()
    assert is_owned_by(descriptor, US)


def test_others_and_what_is_not_understood(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, tuple[str, ...]]] = [
        (f"O:{SID}D:(A;;FA;;;SY)(A;;0x1200a9;;;WD)", ("WD",)),
        (f"O:{SID}D:(A;;FR;;;BU)(A;;FA;;;{SID})(A;;FR;;;S-1-5-21-1-2-3-1002)", ("BU", "S-1-5-21-1-2-3-1002")),
        (f'O:{SID}D:(XA;;FR;;;AU;(@User.Title=="a"))', ("AU",)),
        (f"O:{SID}D:(A;;FR;;;)", (EVERYBODY,)),
        (f"O:{SID}D:NO_ACCESS_CONTROL", (EVERYBODY,)),
        (f"O:{SID}", (EVERYBODY,)),
        ("", (EVERYBODY,)),
        (f"O:{SID}D:(A;;FA)", (EVERYBODY,)),
        (f"O:{SID}D:(QQ;;FA;;;SY)", (EVERYBODY,)),
        (f"O:{SID}D:PWHAT(A;;FA;;;SY)", (EVERYBODY,)),
        (f"O:{SID}D:(A;;FA;;;SY)D:(A;;FA;;;SY)", (EVERYBODY,)),
    ]
    for descriptor, others in cases:
        with subtests.test(descriptor=descriptor, others=others):
            assert others_in(descriptor, US) == others


def test_a_file_of_somebody_else_is_not_ours_whatever_its_list_says() -> None:
    theirs = OWN.replace(f"O:{SID}", "O:S-1-5-21-1-2-3-1002")
    assert others_in(theirs, US) == ()
    assert not is_owned_by(theirs, US)
    assert not is_owned_by("D:(A;;FA;;;SY)", US)


def test_an_abbreviated_name_is_the_same_user() -> None:
    assert is_owned_by("O:LAD:(A;;FA;;;LA)", frozenset({"S-1-5-21-1-2-3-500", "LA"}))
    assert others_in("O:LAD:(A;;FA;;;LA)", frozenset({"S-1-5-21-1-2-3-500", "LA"})) == ()


@given(st.lists(st.sampled_from(["SY", "BA", SID, "WD", "AU", "S-1-5-11"]), max_size=6))
def test_each_entry_for_somebody_else_is_told(whom: list[str]) -> None:
    entries = "".join(f"(A;OICI;FA;;;{name})" for name in whom)
    expected = tuple(name for name in whom if name in ("WD", "AU", "S-1-5-11"))
    assert others_in(f"O:{SID}D:PAI{entries}", US) == expected


@given(st.text(alphabet="OGDS:PAI();WDBFR0x-1 ", max_size=60))
def test_no_text_breaks_it_and_what_has_no_list_is_open(text: str) -> None:
    others = others_in(text, US)
    if "D:" not in text:
        assert others == (EVERYBODY,)
