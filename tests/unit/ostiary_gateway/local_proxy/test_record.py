"""What is remembered of a context: written whole, for the user alone, and never half believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.local_proxy import record as records
from tests.support.connect_listener import connect_record


def test_a_record_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    for name in ["prod@ostiary", "with space", "a/../../b", "ÄÖ", "UPPER", "x" * 150]:
        with subtests.test(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            record = connect_record(tmp_path / "config", name=name)
            records.save(record)
            assert records.load(name) == record
            assert list(records.all_records()) == [record]
            path = Path(records.path_of(name))
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            assert record.certificate.key_pem.reveal() not in repr(record)
            records.remove(name)
            assert list(records.all_records()) == []
            with pytest.raises(ConfigurationError) as raised:
                records.load(name)
            assert raised.value.code == "connect-context-unknown"
            assert records.load_if_known(name) is None


def test_a_name_that_no_file_can_have_is_told() -> None:
    with pytest.raises(ConfigurationError):
        records.path_of("x" * 500)


def test_a_damaged_record_is_told_and_not_quoted(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for content in [b"", b"{}", b"[]", b"7", b'{"name": "test@ostiary"}', b"\xff"]:
        with subtests.test(content=content):
            tmp_path = tmp_path_factory.mktemp("case")
            records.save(connect_record(tmp_path / "config"))
            path = Path(records.path_of("test@ostiary"))
            path.write_bytes(content)
            with pytest.raises(ConfigurationError) as raised:
                records.load("test@ostiary")
            assert raised.value.code == "connect-context-unknown"
            assert list(records.all_records()) == []


def test_one_that_others_can_read_is_not_trusted(tmp_path: Path) -> None:
    records.save(connect_record(tmp_path / "config"))
    Path(records.path_of("test@ostiary")).chmod(0o644)
    with pytest.raises(ConfigurationError) as raised:
        records.load("test@ostiary")
    assert raised.value.code == "session-file-unsafe"
