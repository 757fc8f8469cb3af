"""Redaction: a secret that was named never survives, and what looks like one hardly ever does."""

from __future__ import annotations

import base64
import json
import random
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary.core.redaction import MARKS, redact, tail, without_tokens

MARK = MARKS[0]
unhurried = settings(deadline=None)
MEGABYTE = 1_000_000
KEY_BODY = "MIIEvQIBADANBg\nkqhkiG9w0BAQEF\n"


def pem(kind: str = "", *, begin: bool = True, end: bool = True) -> str:
    first = f"-----BEGIN {kind}PRIVATE KEY-----\n" if begin else ""
    return first + KEY_BODY + (f"-----END {kind}PRIVATE KEY-----" if end else "")


# --- what looks like a secret ---


def test_what_looks_like_a_secret_is_taken_out(subtests: pytest.Subtests) -> None:
    cases = [
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("authorization: basic dXNlcjpw==", "authorization: basic ***"),
        ("sent 'Bearer abc' to", "sent 'Bearer ***' to"),
        ("token: Bearer abc", "token: Bearer ***"),
        ("password=hunter2 for bob", "password=*** for bob"),
        ("PASSWORD = hunter2", "PASSWORD = ***"),
        ("passphrase: hunter2", "passphrase: ***"),
        ("password=(hunter2", "password=***"),
        ("password=\\hunter2", "password=***"),
        ("password: it's,me;&you", "password: ***"),
        ("access_token=abc", "access_token=***"),
        ("X-Auth-Token: abc", "X-Auth-Token: ***"),
        ("secret := abc", "secret := ***"),
        ("client_secret => abc", "client_secret => ***"),
        ("api_key=a api-key=b apikey=c", "api_key=*** api-key=*** apikey=***"),
        ("AWS_SECRET_ACCESS_KEY=a/b", "AWS_SECRET_ACCESS_KEY=***"),
        ('{"password": "a b", "user": "bob"}', '{"password": ***, "user": "bob"}'),
        ('{"password": "a\\"b", "user": "bob"}', '{"password": ***, "user": "bob"}'),
        ('{"token":"cut', '{"token":***'),
        (r'"{\"token\": \"a b\", \"user\": \"bob\"}"', r'"{\"token\": ***, \"user\": \"bob\"}"'),
        (r'"{\"token\": \"a\\\"b\", \"user\": 1}"', r'"{\"token\": ***, \"user\": 1}"'),
        ("{'client_secret': 'a b'}", "{'client_secret': ***}"),
        ("ost_abcdefgh", "***"),
        ("ghp_abcdefgh gho_abcdefgh github_pat_abcdefgh", "*** *** ***"),
        ("glpat-abc_defgh", "***"),
        ("key AKIAIOSFODNN7EXAMPLE, ASIAIOSFODNN7EXAMPLE", "key ***, ***"),
        ("ya29.a0AfH6SM", "***"),
        ("proxy http://bob:hunter2@proxy:3128/x failed", "proxy http://***@proxy:3128/x failed"),
        ("https://bob:p@ss@host", "https://***@host"),
        ("https://hunter2@host", "https://***@host"),
        ("code 1234-5678-abcd-9012-3456-efgh", "code ***"),
        ("token sFfPkKaUzWqLeRtYmNbVcXzQ", "token ***"),
        ("id 550e8400-e29b-41d4-a716-446655440000", "id ***"),
        (f"bad {pem()}\nretry", "bad ***\nretry"),
        (f"bad {pem('RSA ')} or {pem('OPENSSH ')}.", "bad *** or ***."),
        (f"bad {pem(end=False)}", "bad ***"),
        (f"{pem(begin=False)}\nretry", "***\nretry"),
        (f"key: {json.dumps(pem())}, retry", 'key: "***", retry'),
        ('no "-----BEGIN PRIVATE KEY-----" in the file', 'no "***" in the file'),
    ]
    for text, expected in cases:
        with subtests.test(text=text, expected=expected):
            assert redact(text) == expected


def test_ordinary_text_is_left_alone(subtests: pytest.Subtests) -> None:
    cases = [
        "could not get a token: ",
        "dial tcp 10.0.0.1:6443: connect: connection refused",
        "see /usr/lib/python3/dist-packages/awscli/customizations/eks2/__init__.py",
        "the binary gke-gcloud-auth-plugin-v2-linux-amd64 is not installed",
        "--request-timeout=30 --output-format=json-v1beta1-long",
        "KUBERNETES_EXEC_INFO_VERSION_1 is not set",
        'secrets "database-credentials" is forbidden',
        "tokenFile and secretName are different things",
        "host_name_is_long and post_install_script",
        'www-authenticate: Bearer realm="https://login.example", error="invalid_token"',
        "GET https://host.example:6443/api/v1/namespaces?limit=500",
        "monkeyJungle.py",
        "ExecCredentialProviderConfiguration",
    ]
    for text in cases:
        with subtests.test(text=text):
            assert redact(text) == text


surroundings = st.text(max_size=20)
seeds = st.integers(0, 2**64 - 1)


def is_mixed(token: str) -> bool:
    return any(map(str.isdigit, token)) and any(map(str.isalpha, token))


@unhurried
@given(before=surroundings, after=surroundings, seed=seeds, size=st.integers(16, 96))
def test_a_random_hex_token_never_survives(before: str, after: str, seed: int, size: int) -> None:
    token = random.Random(seed).randbytes(size).hex()
    assert token not in redact(before + token + after) or not is_mixed(token)


@unhurried
@given(before=surroundings, after=surroundings, seed=seeds, size=st.integers(24, 96), url_safe=st.booleans())
def test_a_random_base64_token_never_survives(before: str, after: str, seed: int, size: int, url_safe: bool) -> None:
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    token = encode(random.Random(seed).randbytes(size)).decode()
    assert token not in redact(before + token + after) or not is_mixed(token)


claims = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3)


@unhurried
@given(before=surroundings, after=surroundings, claims=claims, signature=st.binary(min_size=3, max_size=64))
@example(before="x", after="x", claims={}, signature=b"abc")
def test_a_random_jwt_never_survives(before: str, after: str, claims: dict[str, object], signature: bytes) -> None:
    parts = [json.dumps({"alg": "HS256", "typ": "JWT"}).encode(), json.dumps(claims).encode(), signature]
    token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    left = redact(before + token + after)
    assert token not in left
    assert token.rpartition(".")[0] not in left
    assert "." + token.rpartition(".")[2] not in left or "." + token.rpartition(".")[2] in before + after


# --- secrets that are known ---


@unhurried
@given(before=surroundings, secret=st.text(min_size=1), after=surroundings)
@example(before="", secret="*", after="*")
@example(before="", secret="*x", after="xx")
@example(before="xx", secret="x*", after="")
@example(before="", secret="]x*", after="x*x*")
@example(before="\x1b", secret="0", after="")
@example(before="red", secret="redacted*", after="")
@example(before="", secret="*[█", after="*[█")
def test_a_known_secret_never_survives(before: str, secret: str, after: str) -> None:
    assert secret not in redact(before + secret + after, secrets=[secret])


@unhurried
@given(text=st.text(alphabet="ab* [", max_size=30), secrets=st.lists(st.text(alphabet="ab* [", max_size=4)))
def test_no_known_secret_survives_another(text: str, secrets: list[str]) -> None:
    left = redact(text, secrets=secrets)
    assert not [secret for secret in secrets if secret and secret in left]


def test_the_longest_secret_is_taken_out_first() -> None:
    assert redact("<abc-def>", secrets=["abc", "abc-def"]) == "<***>"


def test_the_words_of_a_secret_are_secrets_too() -> None:
    secrets = ["correct battery of staples"]
    assert redact("got 'battery' of staples, not correct", secrets=secrets) == "got '***' of ***, not ***"


def test_an_empty_secret_changes_nothing() -> None:
    assert redact("all is well", secrets=["", "  "]) == "all is well"


def test_a_text_full_of_awkward_secrets_is_withheld_rather_than_shown() -> None:
    assert redact("a*b[c]d█e", secrets=["*", "[", "█"]) == ""


def test_what_steers_a_terminal_does_not_come_through() -> None:
    assert "\x1b" not in redact("\x1b[2J\x1b]0;title\x07 failed")


# --- hostile text ---


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("eyJ" * (MEGABYTE // 3), 1),
        ("eyJ" * (MEGABYTE // 3) + ".", 1),
        (("eyJ" + "a" * 30 + ".b ") * (MEGABYTE // 36), MEGABYTE // 36),
        ("-" * MEGABYTE, 0),
        ("-----BEGIN PRIVATE KEY-----" * (MEGABYTE // 27), MEGABYTE // 27),
        ("-----END PRIVATE KEY-----" * (MEGABYTE // 25), MEGABYTE // 25),
        ('-----BEGIN PRIVATE KEY-----"' * (MEGABYTE // 28), MEGABYTE // 28),
        ("-----BEGIN " + "RSA " * (MEGABYTE // 4), 0),
        ("password" * (MEGABYTE // 8), 0),
        ("password=x " * (MEGABYTE // 11), MEGABYTE // 11),
        ("token" + " " * MEGABYTE, 0),
        ('token="' + "\\" * MEGABYTE, 1),
        ('token=\\"' + "\\\\" * (MEGABYTE // 2), 1),
        ("bearer " * (MEGABYTE // 7), MEGABYTE // 14),
        ("basic" + "\t" * MEGABYTE, 0),
        ("://" * (MEGABYTE // 3), 0),
        ("://" + "a" * MEGABYTE, 0),
        ("://" + "a@" * (MEGABYTE // 2), 1),
        ("a1" * (MEGABYTE // 2), 1),
        ("a1/" * (MEGABYTE // 3), 0),
        ("a-" * (MEGABYTE // 2) + "1", 0),
        ("ghp_" * (MEGABYTE // 4), 1),
        ("AKIA" * (MEGABYTE // 4), 1),
        ("\x1b" * MEGABYTE, 0),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, str) else None,
)
def test_a_megabyte_of_hostile_text_is_read_once(text: str, marks: int) -> None:
    # With a quadratic rule this would take hours, on any machine.
    assert redact(text).count(MARK) == marks


@pytest.mark.parametrize("unit", ["password=x ", "a1/", "-----BEGIN PRIVATE KEY-----", "x" * 30 + "1 ", "eyJ."])
def test_twice_the_text_is_twice_the_work(unit: str) -> None:
    assert calls_while_reading(unit * 2000) <= 2 * calls_while_reading(unit * 1000)


def calls_while_reading(text: str) -> int:
    count = 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(tick)
    try:
        redact(text)
    finally:
        sys.setprofile(None)
    return count


# --- tail ---


def test_the_tail_begins_with_a_whole_line_or_word(subtests: pytest.Subtests) -> None:
    cases = [
        (b"", 0, ""),
        (b"", 10, ""),
        (b"one\ntwo\n", 8, "one\ntwo\n"),
        (b"one\ntwo\n", 7, "…\ntwo\n"),
        (b"one\ntwo\n", 4, "…\ntwo\n"),
        (b"one\ntwo\n", 3, "…"),
        (b"one two three", 6, "… three"),
        (b"one two three\n", 6, "… three\n"),
        (b"onetwothree", 6, "…"),
        (b"one", 0, "…"),
        ("ä\nö\n".encode(), 4, "…\nö\n"),
        ("äö ü".encode(), 4, "… ü"),
        (b"\xff\xfe", 2, "\ufffd\ufffd"),
    ]
    for data, limit, expected in cases:
        with subtests.test(data=data, limit=limit, expected=expected):
            assert tail(data, limit) == expected


@unhurried
@given(data=st.binary(), limit=st.integers(0, 50))
def test_the_tail_is_the_end_of_the_data_and_never_longer_than_asked(data: bytes, limit: int) -> None:
    shown = tail(data, limit)
    if len(data) <= limit:
        assert shown == data.decode("utf-8", "replace")
    else:
        assert shown.startswith("…")
        assert data.decode("utf-8", "replace").endswith(shown[2:])
        assert len(shown[2:]) <= limit


def test_a_token_inside_a_word_is_taken_out() -> None:
    token = "ost_" + "aB3-_xYz" * 6
    assert token[8:] not in redact(f"namespace ns{token} not found")


def test_no_text_makes_the_search_for_tokens_slow(subtests: pytest.Subtests) -> None:
    """Linear: a hundred thousand beginnings of tokens end within the time that pytest gives a test."""
    for part in ["eyJ", "ost_", "ost", "eyJa.", "o", "eyJost_"]:
        with subtests.test(part=part):
            without_tokens(part * 100_000, "***")
