"""A pattern matches an image exactly when the kubelet says so, and a mismatch has its first reason."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary.registry.image_matching import Mismatch, PatternIndex, Reason, label_matches, matches, why_not
from ostiary.registry.image_name import parse_image_name

ECR = "*.dkr.ecr.*.amazonaws.com"

# TestURLsMatch of the kubelet.
KUBELET_TABLE = [
    ("*.kubernetes.io", "prefix.kubernetes.io", True),
    ("prefix.*.io", "prefix.kubernetes.io", True),
    ("prefix.kubernetes.*", "prefix.kubernetes.io", True),
    ("*-good.kubernetes.io", "prefix-good.kubernetes.io", True),
    ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah", True),
    ("prefix.*.io/foo", "prefix.kubernetes.io/foo/bar", True),
    ("*.kubernetes.io:1111/blah", "prefix.kubernetes.io:1111/blah", True),
    ("prefix.*.io:1111/foo", "prefix.kubernetes.io:1111/foo/bar", True),
    ("*.kubernetes.io", "kubernetes.io", False),
    ("*.*.kubernetes.io", "prefix.kubernetes.io", False),
    ("*.*.kubernetes.io", "kubernetes.io", False),
    ("*kubernetes.io", "a.kubernetes.io", False),
    ("*kubernetes.io", "kubernetes.io", True),
    ("*.*.*.kubernetes.io", "a.b.c.kubernetes.io", True),
    ("kubernetes.io", "kubernetes.com", False),
    ("k*.io", "quay.io", False),
    ("*.kubernetes.io:1234/blah", "prefix.kubernetes.io:1111/blah", False),
    ("prefix.*.io/foo", "prefix.kubernetes.io:1111/foo/bar", False),
]

# Measured with Go.
MEASURED_TABLE = [
    ("*", "docker.io/library/nginx", False),
    ("*", "localhost/foo", True),
    ("*.*", "docker.io/x", True),
    ("*:5000", "localhost:5000/x", True),
    ("registry.io/*", "registry.io/foo", False),
    ("registry.io/*", "registry.io/*x", True),
    ("gcr.io/foo", "gcr.io/foobar", True),
    ("gcr.io/foo/", "gcr.io/foo", False),
    ("gcr.io/foo/", "gcr.io/foo/bar", True),
    ("gcr.io/", "gcr.io", False),
    ("gcr.io/", "gcr.io/x", True),
    ("GCR.io", "gcr.io/x", False),
    ("gcr.io", "GCR.IO/x", False),
    ("registry.io:443", "registry.io/x", False),
    ("registry.io", "registry.io:443/x", False),
    ("registry.io:", "registry.io/x", True),
    ("registry.io:*", "registry.io:5000/x", False),
    ("registry.io:5000", "registry.io:05000/x", False),
    ("reg?stry.io", "registry.io/x", False),
    ("registry.io?", "registry.io/x", True),
    ("reg\\*.io", "reg*.io/x", False),
    ("{a,b}.io", "a.io/x", False),
    ("foo bar", "x", False),
    ("%invalid%", "x", False),
    ("https://registry.io", "registry.io/x", False),
    ("nginx", "nginx:latest", False),
    ("nginx", "nginx:1.25", False),
    ("nginx:5", "nginx:5", True),
    ("registry.io/foo", "registry.io/foo:tag", True),
    ("registry.io/foo", "registry.io/foo@sha256:abc", True),
    ("registry.io/foo", "registry.io", False),
    ("registry.io/A", "registry.io/a", False),
    ("registry.io/a//b", "registry.io/a/b", False),
    ("registry.io/foo/../bar", "registry.io/bar", False),
    ("registry.io/foo%20bar", "registry.io/foo bar", True),
    ("registry.io/foo?x", "registry.io/foo", True),
    ("registry.io/foo#x", "registry.io/foo", True),
    ("user@registry.io", "registry.io/x", True),
    ("registry.io", "user@registry.io/x", True),
    ("[::1]:5000", "[::1]:5000/x", True),
    ("[::1]", "[::1]/x", False),
    ("127.*.*.*:5000", "127.0.0.1:5000/x", True),
    ("localhost", "localhost/x", True),
    ("registry.io.", "registry.io/x", False),
    ("registry..io", "registry..io/x", True),
    ("a*b.io", "ab.io/x", True),
    ("**.io", "a.io/x", True),
    ("a-*.io", "a-.io/x", True),
    ("", "", True),
    ("", "docker.io/x", False),
    (ECR, "012345678910.dkr.ecr.us-east-1.amazonaws.com/i", True),
    (ECR, "012345678910.dkr.ecr.cn-north-1.amazonaws.com.cn/i", False),
    ("docker.io", "docker.io/library/nginx", True),
    ("index.docker.io", "docker.io/library/nginx", False),
    ("registry.io:8080/path", "registry.io:8080/path/img", True),
    ("reg[a-z]stry.io", "registry.io/x", False),
    ("reg[istry].io", "regi.io/x", False),
    ("a:1:5000", "a:1:5000/x", False),
    ("::1", "::1/x", False),
]

# What follows from the rules beyond the tables.
MORE = [
    ("[::1]", "1/x", True),
    ("[::1]", "2/x", False),
    ("[::1]", "[::1]:443/x", False),
    ("*", "[::1]/x", True),
    ("[fe80::1%25a-z]", "m/x", True),
    ("[fe80::1%25a-z]", "M/x", False),
    ("[fe80::1%25a-]", "a/x", False),
    ("[::ffff:1.2.3.4]", "[::ffff:1.2.3.4]/x", False),
    ("[fe80::1%25\u00e9]", "\u00e9/x", True),
    ("[fe80::1%25a]*", "ab/x", False),
    ("*.io/foo", "gcr.io/foo", True),
    ("a*b*c.io", "abbc.io/x", True),
    ("a*bc*.io", "abbcd.io/x", True),
    ("*a*a.io", "a.io/x", False),
    ("*ab.io", "abab.io/x", True),
    ("caf*.io", "caf\u00e9.io/x", True),
    ("*%A9.io", "\u00e9.io/x", True),
    ("registry.io/%C3", "registry.io/\u00e9", True),
]


def test_a_pattern_matches_as_for_the_kubelet(subtests: pytest.Subtests) -> None:
    """TestURLsMatch, and what else Go's own functions answered. I12, I13, I14, I15, I16, I17, I29."""
    for pattern, target, expected in KUBELET_TABLE + MEASURED_TABLE + MORE:
        with subtests.test(pattern=pattern, target=target, expected=expected):
            assert matches(pattern, target) is expected
            assert (why_not(pattern, target) is None) is expected
            assert PatternIndex([(pattern, "hit")]).find(target) == (["hit"] if expected else [])


def test_docker_hub_must_be_named_docker_io() -> None:
    """What an image of the Hub is normalised to never has the host index.docker.io."""
    repository = parse_image_name("index.docker.io/library/nginx").repository
    assert matches("docker.io", repository)
    assert not matches("index.docker.io", repository)


def test_a_name_that_was_not_normalised_matches_nothing() -> None:
    """The tag looks like a port that is no number."""
    assert not matches("nginx", "nginx:latest")
    assert matches("docker.io/library/nginx", parse_image_name("nginx:latest").repository)


def test_a_star_alone_matches_hosts_of_one_label_and_peers_list_one_pattern_per_length() -> None:
    """I14."""
    patterns = [".".join("*" * count) for count in range(1, 7)]
    for host in ("localhost", "docker.io", "a.b.c", "a.b.c.d", "a.b.c.d.e", "a.b.c.d.e.f"):
        assert [matches(pattern, f"{host}/x") for pattern in patterns].count(True) == 1


def test_any_pattern_of_a_list_may_match_and_none_is_preferred_for_being_specific() -> None:
    """The values of all that match come in the order they were given. I10."""
    index = PatternIndex([("*.io", 1), ("quay.io/team", 2), ("gcr.io", 3), ("quay.io", 4)])
    assert index.find("quay.io/team/app") == [1, 2, 4]


# --- reasons ---


def test_a_mismatch_names_its_first_reason(subtests: pytest.Subtests) -> None:
    cases = [
        ("registry.io:*", "registry.io:5000/x", Reason.PATTERN_UNPARSABLE, 'invalid port ":*" after host'),
        ("registry.io:*", "nginx:latest", Reason.PATTERN_UNPARSABLE, "pattern"),
        ("nginx", "nginx:latest", Reason.IMAGE_UNPARSABLE, 'invalid port ":latest" after host'),
        ("a.io", "a.b.io:1/x", Reason.PORTS_DIFFER, "the pattern has none and the image has port 1"),
        ("a.io:1", "a.io/x", Reason.PORTS_DIFFER, "the pattern has port 1 and the image has none"),
        ("*.io", "a.b.io/x", Reason.LABEL_COUNT_DIFFERS, "2 in the pattern's host and 3 in the image's"),
        ("b.io/no", "a.io/x", Reason.LABEL_DIFFERS, 'label 1 of the host differs: "b" does not match "a"'),
        ("*.com", "a.io/x", Reason.LABEL_DIFFERS, 'label 2 of the host differs: "com" does not match "io"'),
        ("a.io/team", "a.io/other/x", Reason.PATH_NOT_PREFIX, '"/team" is not how the image\'s path "/other/x" begins'),
        ("a.io/*", "a.io/x", Reason.STAR_IN_PATH, '"/*"'),
    ]
    for pattern, target, reason, said in cases:
        with subtests.test(pattern=pattern, target=target, reason=reason, said=said):
            found = why_not(pattern, target)
            assert found is not None
            assert found.reason is reason
            assert said in found.message


def test_a_mismatch_that_surprises_people_has_a_hint(subtests: pytest.Subtests) -> None:
    cases = [
        ("registry.io:*", "registry.io:5000/x", "digits"),
        ("nginx", "nginx:latest", "normalise"),
        ("a.io", "a.io:1/x", "without a port"),
        ("https://a.io", "a.io/x", "leave out the scheme"),
        ("http://a.io", "a.io/x", "leave out the scheme"),
        ("index.docker.io", "docker.io/library/nginx", "docker.io"),
        ("*", "docker.io/x", "one label"),
        ("GCR.io", "gcr.io/x", "lower case"),
        ("[::1]", "[::1]/x", "add the port"),
        ("a.io/*", "a.io/x", "stands for itself"),
        ("a.io/x/", "a.io/x", "slash at the end"),
    ]
    for pattern, target, hint in cases:
        with subtests.test(pattern=pattern, target=target, hint=hint):
            found = why_not(pattern, target)
            assert found is not None
            assert hint in (found.hint or "")


def test_a_reason_shows_no_control_characters() -> None:
    found = why_not("a.io/%1b%5b2J", "a.io/x")
    assert isinstance(found, Mismatch)
    assert found.message.isprintable()


# --- properties ---

GLOBS = st.sampled_from(["*", "a*", "*a", "a*b", "*a*", "*a*b*", "**"])
LABELS = GLOBS | st.sampled_from(["a", "b", "ab", "", "A", "é", "%C3%A9", "%C3", "?"])
HOSTS = st.lists(LABELS, max_size=4).map(".".join) | st.sampled_from(["[::1]", "[fe80::1%25a-b]", "[::ffff:1.2.3.4]"])
PORTS = st.sampled_from(["", ":", ":1", ":01", ":*", ":1:1"])
PATHS = st.lists(st.sampled_from(["/", "a", "b", "*", "%61", "%", "#", "?", " "]), max_size=4).map("".join)
STRUCTURED = st.builds("{}{}{}".format, HOSTS, PORTS, PATHS)
HOSTILE = STRUCTURED | st.text(alphabet="ab*.:/[]%1é?#@\\-", max_size=12) | st.text(max_size=20)


@settings(deadline=None, max_examples=300)
@given(st.lists(HOSTILE, max_size=8), HOSTILE)
@example(["a.io", "a.io"], "a.io/x")
@example(["\ud800", "[::1]", "*"], "\udfff")
def test_the_index_finds_what_matching_one_by_one_finds(patterns: list[str], target: str) -> None:
    expected = [number for number, pattern in enumerate(patterns) if matches(pattern, target)]
    assert PatternIndex((pattern, number) for number, pattern in enumerate(patterns)).find(target) == expected


@settings(deadline=None, max_examples=300)
@given(st.text() | st.binary() | HOSTILE, st.text() | st.binary() | HOSTILE)
def test_matching_never_raises(pattern: str | bytes, target: str | bytes) -> None:
    assert isinstance(matches(pattern, target), bool)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab*").map(str.encode), st.text(alphabet="ab").map(str.encode))
def test_a_star_stands_for_any_text(glob: bytes, label: bytes) -> None:
    expression = b".*".join(map(re.escape, glob.split(b"*")))
    assert label_matches(glob, label) == bool(re.fullmatch(expression, label, re.DOTALL))


@settings(deadline=None)
@given(STRUCTURED)
def test_a_pattern_without_globs_and_brackets_matches_itself(text: str) -> None:
    found = why_not(text, text)
    assert found is None or found.reason is Reason.PATTERN_UNPARSABLE or "[" in text


# --- cost ---


def calls_of(work: Callable[[], object]) -> int:
    """How many function calls *work* makes: a measure of cost that is the same on every machine."""
    count = 0

    def tally(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_ten_thousand_patterns_that_do_not_match_cost_no_more_than_ten(subtests: pytest.Subtests) -> None:
    cases = [
        "r{}.example.com",
        "r{}*.example.com",
        "*-r{}.example.com",
        "*-r{}-*.example.com",
        "a*-r{}-*.example.com",
        "r.example.com/team-{}",
        "r.example.com:{}",
        "*.r{}.com",
        "{}.dkr.ecr.*.amazonaws.com",
        "{}/not a host",
    ]

    def index_of(pattern: str, count: int) -> PatternIndex[int]:
        others = ((pattern.format(10_000 + number), number) for number in range(count))
        return PatternIndex([*others, ("r.example.com/team", -1), ("*.dkr.ecr.*.amazonaws.com", -2)])

    for pattern in cases:
        with subtests.test(pattern=pattern):
            few, many = index_of(pattern, 10), index_of(pattern, 10_000)
            for target in (
                "r.example.com/team/app",
                "1.dkr.ecr.us-east-1.amazonaws.com/app",
                "docker.io/library/nginx",
            ):
                assert many.find(target) == few.find(target)
                assert calls_of(partial(many.find, target)) <= 2 * calls_of(partial(few.find, target))


def test_a_very_long_host_is_judged_without_recursion() -> None:
    host = ".".join("a" * 5_000)
    assert matches(host, f"{host}/x")
    assert PatternIndex([(host, 1), ("*" + host[1:], 2), ("a", 3)]).find(f"{host}/x") == [1, 2]


def test_a_very_long_label_is_judged_without_much_work() -> None:
    label = "a" * 100_000
    assert not matches("*b.io", f"{label}.io/x")
    assert matches("a*a*.io", f"{label}.io/x")


# --- the dialect of the proposal ---

ANY_PORT = [
    ("registry.io", "registry.io/a", True),
    ("registry.io", "registry.io:5000/a", True),
    ("registry.io/a", "registry.io:5000/ab", True),
    ("*.io", "registry.io:5000/a", True),
    ("registry.io:5000", "registry.io:5000/a", True),
    ("registry.io:5000", "registry.io/a", False),
    ("registry.io:5000", "registry.io:5001/a", False),
    ("registry.io/b", "registry.io:5000/a", False),
    ("localhost", "localhost:5000/a", True),
    ("[::1]", "[::1]:5000/a", True),
    ("[::1]", "[::1]/a", True),
    ("[::1]", "[::2]:5000/a", False),
]


def test_in_the_proposal_the_port_counts_only_if_the_pattern_has_one(subtests: pytest.Subtests) -> None:
    """I17."""
    for pattern, image, expected in ANY_PORT:
        with subtests.test(pattern=pattern, image=image, expected=expected):
            assert matches(pattern, image, any_port=True) is expected
            index = PatternIndex([(pattern, "proposed")], any_port=lambda value: value == "proposed")
            assert index.find(image) == (["proposed"] if expected else [])


def test_the_port_counts_for_the_kubelet_beside_a_provider_of_the_proposal() -> None:
    patterns = [("a.io", 1), ("a.io:5000", 2), ("*.io", 3), ("a.io", 4)]
    index = PatternIndex(patterns, any_port=lambda value: value > 2)
    assert index.find("a.io:5000/x") == [2, 3, 4]
    assert index.find("a.io:1/x") == [3, 4]
    assert index.find("a.io/x") == [1, 3, 4]


@given(st.sampled_from([pattern for pattern, _, _ in ANY_PORT]), st.sampled_from([image for _, image, _ in ANY_PORT]))
def test_what_matches_for_the_kubelet_matches_in_the_proposal(pattern: str, image: str) -> None:
    assert not matches(pattern, image) or matches(pattern, image, any_port=True) or pattern.startswith("[")
