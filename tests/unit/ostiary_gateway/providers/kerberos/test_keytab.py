"""Which principals a keytab has: read as MIT Kerberos writes it, and refused as a whole if it is anything else."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary_gateway.providers.kerberos.checks import usable_services
from ostiary_gateway.providers.kerberos.keytab import KeytabEntry, read_keytab
from ostiary_gateway.providers.kerberos.principals import Principal
from tests.support.keytab import FORMAT, entry

GATEWAY = Principal(("HTTP", "gateway.example.com"), "EXAMPLE.COM")


def write(folder: Path, *parts: bytes) -> str:
    path = folder / "keytab"
    path.write_bytes(FORMAT + b"".join(parts))
    return str(path)


def test_it_has_the_principals_with_the_versions_of_their_keys(tmp_path: Path) -> None:
    hole = struct.pack(">i", -8) + bytes(8)
    path = write(tmp_path, entry(GATEWAY, 3, wide=False), hole, entry(GATEWAY, 300))
    assert read_keytab(path) == (KeytabEntry(GATEWAY, 3), KeytabEntry(GATEWAY, 300))


@pytest.mark.parametrize("content", [b"", b"\x05\x01", FORMAT + entry(GATEWAY, 1)[:-9], b"\x05\x02\0\0\0\1x"])
def test_anything_else_is_refused_without_a_word_of_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keytab"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="cannot be used") as refused:
        read_keytab(str(path))
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_keytab(str(tmp_path / "none"))
    assert refused.value.cause == "No such file or directory"


@given(st.binary(max_size=120))
def test_no_bytes_do_any_harm(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-keytab"
    path.write_bytes(FORMAT + content)
    # Nothing but what a wrong keytab is told with.
    with suppress(ConfigurationError):
        read_keytab(str(path))


def test_tickets_may_be_for_our_host_or_for_what_is_named() -> None:
    other = Principal(("HTTP", "other.example.com"), "EXAMPLE.COM")
    host = Principal(("host", "gateway.example.com"), "EXAMPLE.COM")
    entries = [KeytabEntry(each, 1) for each in (GATEWAY, other, host, GATEWAY)]
    assert usable_services(entries, (), "https://Gateway.example.com:8443") == (GATEWAY,)
    assert usable_services(entries, (other,), "https://gateway.example.com") == (other,)
    assert usable_services(entries, (), "https://elsewhere.example.com") == ()
    assert usable_services(entries, (), "") == ()
