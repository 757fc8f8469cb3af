"""Which table of a registries.conf an image falls under, and its name at a location."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.registry.mirrors.prefix_match import longest_match, match_length, rewrite

LABEL = st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True)
HOSTS = st.builds(
    lambda labels, port: ".".join(labels) + (f":{port}" if port else ""),
    st.lists(LABEL, min_size=2, max_size=4),
    st.sampled_from([0, 80, 5000]),
)
NAMES = st.builds(lambda host, path: "/".join([host, *path]), HOSTS, st.lists(LABEL, min_size=1, max_size=3))


@dataclass(frozen=True)
class Table:
    prefix: str


def test_a_prefix_matches_as_the_programs_match_it(subtests: pytest.Subtests) -> None:
    cases = [
        ("example.com/foo/app", "example.com", 11),
        ("example.com/foo/app", "example.com/foo", 15),
        ("example.com/foo/app", "example.com/foo/app", 19),
        ("example.com/foobar/app", "example.com/foo", None),
        ("example.com.evil/app", "example.com", None),
        ("example.com:5000/app", "example.com", 11),
        ("example.com/app", "example.com:5000", None),
        ("a.example.com/app", "*.example.com", 13),
        ("a.b.example.com/app", "*.example.com", 15),
        ("a.example.com:5000/app", "*.example.com", 13),
        ("example.com/app", "*.example.com", None),
        ("a.example.common/app", "*.example.com", None),
        ("evil.net/x.example.com/app", "*.example.com", None),
        ("a.example.com.b.example.com/app", "*.example.com", None),
        ("a.example.com", "*.example.com", 13),
        ("example.com/app", "example.com/app:v1", None),
        ("a.x.example.com/app", "a.*.example.com", None),
    ]
    for name, prefix, length in cases:
        with subtests.test(name=name, prefix=prefix, length=length):
            assert match_length(name, prefix) == length


@given(NAMES, st.integers(0, 3))
def test_every_beginning_of_a_name_at_a_slash_matches_and_is_kept_off(name: str, parts: int) -> None:
    prefix = "/".join(name.split("/")[: parts + 1])
    assert match_length(name, prefix) == len(prefix)
    assert rewrite(f"{name}:v1", prefix, "mirror.example") == f"mirror.example{name[len(prefix) :]}:v1"


@given(NAMES, NAMES)
def test_what_matches_is_a_beginning_that_ends_at_a_separator(name: str, prefix: str) -> None:
    length = match_length(name, prefix)
    is_beginning = name == prefix or any(name.startswith(prefix + char) for char in ":/@")
    assert (length is not None) == is_beginning


@given(NAMES, LABEL)
def test_a_star_stands_for_any_number_of_labels_of_the_host_alone(name: str, label: str) -> None:
    host = name.partition("/")[0].partition(":")[0]
    # A label could stand in the name of the host already.
    if f".{host}" not in f"{label}.{host}"[: len(label)]:
        assert match_length(f"{label}.{name}", f"*.{host}") == len(label) + 1 + len(host)
    assert match_length(f"other.invalid/{name}", f"*.{host}") is None


@given(NAMES, st.lists(NAMES, max_size=6))
def test_the_longest_prefix_counts_in_whatever_order(name: str, prefixes: list[str]) -> None:
    tables = [Table(prefix) for prefix in [*prefixes, name, name.partition("/")[0]]]
    assert longest_match(name, tables) == longest_match(name, tables[::-1]) == Table(name)


def test_of_two_prefixes_of_one_length_the_one_with_a_star_counts() -> None:
    tables = [Table("a.example.com"), Table("*.example.com")]
    assert longest_match("a.example.com/app", tables) == Table("*.example.com")
    assert longest_match("other.net/app", tables) is None


def test_without_a_location_the_name_stays_as_it_is() -> None:
    assert rewrite("a.example.com/app:v1", "*.example.com", "") == "a.example.com/app:v1"
    assert rewrite("a.example.com/app:v1", "*.example.com", "mirror.net/x") == "mirror.net/x/app:v1"
    assert rewrite("other.net/app:v1", "*.example.com", "mirror.net") is None
