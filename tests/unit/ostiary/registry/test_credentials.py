"""Keys and the order of what they hold: the kubelet's keyring, row by row."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import Secret
from ostiary.registry.credentials import (
    Credentials,
    ImageCredential,
    Provenance,
    RegistryLogin,
    SourceKind,
    is_default_registry,
    normalised_key,
    unite,
)
from ostiary.registry.image_matching import matches

SOURCE = Provenance(SourceKind.FILE, "test")
LOGIN = RegistryLogin("foo", Secret("bar"), "foo@bar.baz")


def credentials(*keys: str) -> Credentials:
    """Under each key a login whose username is the key."""
    return Credentials([(key, RegistryLogin(key, Secret("x"))) for key in keys], SOURCE)


def names(found: tuple[ImageCredential, ...]) -> list[str]:
    return [one.username for one in found]


def test_a_glob_key_is_found(subtests: pytest.Subtests) -> None:
    cases = [
        ("https://hello.kubernetes.io", "hello.kubernetes.io"),
        ("https://*.docker.io", "prefix.docker.io"),
        ("https://prefix.*.io", "prefix.docker.io"),
        ("https://prefix.docker.*", "prefix.docker.io"),
        ("https://*.docker.io/path", "prefix.docker.io/path"),
        ("https://prefix.*.io/path", "prefix.docker.io/path/subpath"),
        ("https://prefix.docker.*/path", "prefix.docker.io/path"),
        ("https://*.docker.io:8888", "prefix.docker.io:8888"),
        ("https://prefix.*.io:8888", "prefix.docker.io:8888"),
        ("https://prefix.docker.*:8888", "prefix.docker.io:8888"),
        ("https://*.docker.io/path:1111", "prefix.docker.io/path:1111"),
        ("https://*.docker.io/v1/", "prefix.docker.io/path:1111"),
        ("https://*.docker.io/v2/", "prefix.docker.io/path:1111"),
        ("https://prefix.docker.*/path:1111", "prefix.docker.io/path:1111"),
        ("prefix.docker.io:1111", "prefix.docker.io:1111/path"),
        ("*.docker.io:1111", "prefix.docker.io:1111/path"),
    ]
    for glob, target in cases:
        with subtests.test(glob=glob, target=target):
            (found,) = Credentials([(glob, LOGIN)], SOURCE).find(f"{target}/foo/bar")
            assert (found.username, found.password, found.email) == ("foo", Secret("bar"), "foo@bar.baz")
            assert found.source is SOURCE


def test_a_key_that_does_not_match_is_not_found(subtests: pytest.Subtests) -> None:
    cases = [
        ("https://hello.kubernetes.io", "world.mesos.org/foo/bar"),
        ("https://*.docker.com", "prefix.docker.io"),
        ("https://suffix.*.io", "prefix.docker.io"),
        ("https://prefix.docker.c*", "prefix.docker.io"),
        ("https://prefix.*.io/path:1111", "prefix.docker.io/path/subpath:1111"),
        ("suffix.*.io", "prefix.docker.io"),
    ]
    for glob, target in cases:
        with subtests.test(glob=glob, target=target):
            assert Credentials([(glob, LOGIN)], SOURCE).find(f"{target}/foo/bar") == ()


@pytest.mark.parametrize(
    ("image", "hits"),
    [
        ("world.mesos.org/foo/bar", 0),
        ("google/docker-registry", 1),
        ("jenkins", 1),
        ("docker.io/library/jenkins", 1),
        ("index.docker.io/v1//google/docker-registry", 1),
    ],
)
def test_the_old_address_of_docker_hub_counts_for_its_images(image: str, hits: int) -> None:
    assert len(credentials("https://index.docker.io/v1/").find(image)) == hits


def test_the_old_address_of_docker_hub_counts_only_if_nothing_matches() -> None:
    assert names(credentials("https://index.docker.io/v1/", "docker.io").find("docker.io/library/jenkins")) == [
        "docker.io"
    ]


def test_which_images_are_of_the_default_registry(subtests: pytest.Subtests) -> None:
    cases = [
        ("foo/bar", True),
        ("docker.io/foo/bar", True),
        ("index.docker.io/foo/bar", True),
        ("foo", True),
        ("", False),
        ("registry.tld/foo/bar", False),
        ("registry:5000/foo/bar", False),
        ("myhostdocker.io/foo/bar", False),
    ]
    for image, is_default in cases:
        with subtests.test(image=image, is_default=is_default):
            assert is_default_registry(image) is is_default


GRACE = RegistryLogin("grace", Secret("squash"), "grace@example.com")
ADA = RegistryLogin("ada", Secret("smash"), "ada@example.com")


def test_every_key_that_matches_is_found_the_longest_first(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("bar.example.com", ["ada"]),
        ("bar.example.com/pong", ["grace", "ada"]),
        ("bar.example.com/ping", ["ada"]),
        ("bar.example.com/pongz", ["grace", "ada"]),
        ("bar.example.com/pong/pang", ["grace", "ada"]),
        ("example.com", []),
        ("foo.example.com", []),
    ]
    for image, expected in cases:
        with subtests.test(image=image, expected=expected):
            both = Credentials([("bar.example.com", ADA), ("bar.example.com/pong", GRACE)], SOURCE)
            assert names(both.find(image)) == expected


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        (GRACE, "f949b3837a1eb733a951b6aeda0b3327c09ec50c917de9ca35818e8fbf567e29"),
        (ADA, "353258b53f5e9a57b059eab3f05312fc35bbeb874f08ce101e7bf0bf46977423"),
        (
            RegistryLogin("rex", Secret("tiny arms"), "rex@example.com"),
            "899748fec74c8dd761845fca727f4249b05be275ff24026676fcd4351f656363",
        ),
        (
            RegistryLogin("user", Secret("password")),
            "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d",
        ),
    ],
)
def test_a_credential_has_the_hash_that_the_kubelet_records(login: RegistryLogin, expected: str) -> None:
    (found,) = Credentials([("r.io", login)], SOURCE).find("r.io/x")
    assert found.hash == expected


def test_the_hash_knows_nothing_of_tokens_which_the_kubelet_does_not_read() -> None:
    tokens = RegistryLogin("user", Secret("password"), identity_token=Secret("t"), registry_token=Secret("r"))
    (found,) = Credentials([("r.io", tokens)], SOURCE).find("r.io/x")
    assert found.hash == "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d"


def test_the_hash_of_a_password_that_is_not_text_is_that_of_gos_replacement() -> None:
    (found,) = Credentials([("r.io", RegistryLogin("a", Secret("\udcff\ufffd")))], SOURCE).find("r.io/x")
    spelled = '{"username":"a","password":"\\ufffd\ufffd"}'.encode()
    assert found.hash == hashlib.sha256(spelled).hexdigest()


def test_the_hash_spells_special_characters_as_go_does() -> None:
    (found,) = Credentials([("r.io", RegistryLogin("a", Secret("<&>")))], SOURCE).find("r.io/x")
    spelled = b'{"username":"a","password":"\\u003c\\u0026\\u003e"}'
    assert found.hash == hashlib.sha256(spelled).hexdigest()


@pytest.mark.parametrize("image", ["quay.io", "quay.io/foo", "quay.io/foo/bar"])
def test_the_version_in_a_key_is_no_part_of_an_image_name(image: str) -> None:
    assert len(credentials("https://quay.io/v1/").find(image)) == 1


def test_keys_are_normalised(subtests: pytest.Subtests) -> None:
    cases = [
        ("https://quay.io/v1/", b"quay.io"),
        ("https://quay.io/v1", b"quay.io/v1"),
        ("https://quay.io/v2/ns", b"quay.io/ns"),
        ("http://quay.io/v2/ns", b"quay.io/ns"),
        ("https://user:pw@quay.io/x", b"quay.io/x"),
        ("quay.io/", b"quay.io"),
        ("quay.io:5000", b"quay.io:5000"),
        ("%invalid%", None),
        ("a b", None),
    ]
    for raw, key in cases:
        with subtests.test(raw=raw, key=key):
            assert normalised_key(raw) == key


def test_a_key_that_cannot_be_parsed_is_passed_over() -> None:
    assert credentials("%invalid%", "r.io").keys == (b"r.io",)


def test_keys_stand_in_reverse_byte_order() -> None:
    expected = [
        "~.io",
        "registry.io:8080/path",
        "registry.io:8080",
        "registry.io/foo/bar",
        "registry.io/foo",
        "registry.io",
        "gcr.io",
        "a.registry.io",
        "_x.io",
        "[::1]:5000",
        "Z.io",
        "*.registry.io",
        "*",
    ]
    assert [key.decode() for key in credentials(*sorted(expected)).keys] == expected


def test_two_spellings_of_one_key_stay_in_the_order_they_came_in() -> None:
    both = credentials("https://r.io/v2/", "r.io", "http://r.io")
    assert names(both.find("r.io/x")) == ["https://r.io/v2/", "r.io", "http://r.io"]


def test_a_longer_key_of_a_later_block_comes_first_and_equal_keys_keep_the_order_of_the_blocks() -> None:
    first = Credentials([("r.io", RegistryLogin("first"))], SOURCE)
    second = Credentials([("r.io/team", RegistryLogin("longer")), ("r.io", RegistryLogin("second"))], SOURCE)
    assert names(unite([first, second], "r.io/team/app")) == ["longer", "first", "second"]


def test_secrets_do_not_show_in_a_credential() -> None:
    (found,) = Credentials(
        [("r.io", RegistryLogin("u", Secret("canary"), identity_token=Secret("canary")))], SOURCE
    ).find("r.io")
    assert "canary" not in repr(found)


KEYS = st.sampled_from(["r.io", "*.io", "r.io/a", "r.io/ab", "r.io:80", "q.io", "*", "r.io/a/b", "*.io/a"])


@given(keys=st.lists(KEYS, max_size=9), image=st.sampled_from(["r.io", "r.io/a", "r.io/ab/c", "q.io/a/b", "x:80/y"]))
def test_what_is_found_is_what_matches_in_reverse_order(keys: list[str], image: str) -> None:
    found = names(credentials(*keys).find(image))
    assert found == sorted((key for key in keys if matches(key, image)), reverse=True)
