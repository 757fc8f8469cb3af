"""The quick way of ``get-token --from``, in its parts: which platform, and a file that only this job can read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli import cached_workload_token as cached
from ostiary.cli.cached_workload_token import cache_entry, platform_of, renewal_time, seal, unseal

SERVER = "https://gateway.example"
NONCE = b"n" * 16


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither a projected token nor a pod's service account is there, whatever machine runs the tests."""
    monkeypatch.setattr(cached, "PROJECTED_TOKEN", str(tmp_path / "projected"))
    monkeypatch.setattr(cached, "POD_TOKEN", str(tmp_path / "pod"))
    return tmp_path


# --- the command line ---


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (["--server", SERVER, "--from", "github"], {"--server": SERVER, "--from": "github"}),
        (["--from=auto", f"--server={SERVER}"], {"--server": SERVER, "--from": "auto"}),
        (
            ["--server", SERVER, "--from", "auto", "--can", "get pods", "--can=list pods", "--scope", "x"],
            {"--server": SERVER, "--from": "auto", "--can": "get pods\nlist pods", "--scope": "x"},
        ),
        (["--server", SERVER], None),
        (["--from", "github"], None),
        (["--server", SERVER, "--from"], None),
        (["--server", SERVER, "--from", "github", "--audience", ""], None),
        (["--server", SERVER, "--from", "github", "--account", "a"], None),
        (["--server", SERVER, "--from", "github", "--verbose"], None),
        (["--server", SERVER, "--from", "github", "more"], None),
    ],
)
def test_options_that_are_not_understood_at_once_are_left_to_the_slow_way(
    argv: list[str], options: dict[str, str] | None
) -> None:
    assert cached._options(argv) == options


# --- which platform ---


@pytest.mark.parametrize(
    ("environ", "files", "platform"),
    [
        ({}, (), None),
        ({b"GITHUB_ACTIONS": b"true"}, (), "github"),
        ({b"GITLAB_CI": b"true"}, (), "gitlab"),
        ({b"OSTIARY_IDENTITY_TOKEN_FILE": b"/t", b"GITHUB_ACTIONS": b"true"}, (), "file"),
        ({}, ("projected",), "kubernetes"),
        ({b"SPIFFE_ENDPOINT_SOCKET": b"unix:///run/spire.sock"}, (), "spiffe"),
        ({b"SPIFFE_ENDPOINT_SOCKET": b"unix:///run/spire.sock"}, ("projected",), "kubernetes"),
        ({b"KUBERNETES_SERVICE_HOST": b"10.0.0.1"}, ("pod",), "kubernetes"),
        ({b"KUBERNETES_SERVICE_HOST": b"10.0.0.1"}, (), None),
        ({}, ("pod",), None),
    ],
)
def test_auto_takes_the_first_platform_that_shows_itself(
    paths: Path, environ: dict[bytes, bytes], files: tuple[str, ...], platform: str | None
) -> None:
    for name in files:
        (paths / name).write_text("token")
    assert platform_of({"--from": "auto", "--server": SERVER}, environ) == platform


def test_a_job_whose_runner_is_a_pod_is_the_job_even_if_it_may_have_no_id_token(paths: Path) -> None:
    (paths / "projected").write_text("token")
    (paths / "pod").write_text("token")
    in_pod = {b"KUBERNETES_SERVICE_HOST": b"10.0.0.1"}
    assert platform_of({"--from": "auto"}, {**in_pod, b"GITHUB_ACTIONS": b"true"}) == "github"
    assert platform_of({"--from": "auto"}, {**in_pod, b"GITLAB_CI": b"true"}) == "gitlab"


def test_a_named_file_decides_for_auto_and_a_named_platform_always() -> None:
    assert platform_of({"--from": "auto", "--token-file": "t"}, {b"GITLAB_CI": b"true"}) == "file"
    assert platform_of({"--from": "kubernetes"}, {b"GITLAB_CI": b"true"}) == "kubernetes"
    assert platform_of({"--from": "nowhere"}, {b"GITLAB_CI": b"true"}) is None


# --- whose file it is ---


def entry(environ: dict[bytes, bytes] | None = None, **options: str) -> tuple[str, bytes] | None:
    given_options = {"--server": SERVER, "--from": "github"} | {f"--{name}": value for name, value in options.items()}
    return cache_entry(given_options, {b"ACTIONS_ID_TOKEN_REQUEST_TOKEN": b"job-1"} if environ is None else environ)


def test_the_same_job_finds_its_file_again() -> None:
    first = entry()
    assert first is not None
    assert first == entry() == entry(server=f"{SERVER}/") == entry(audience=SERVER)
    name, secret = first
    assert (name.startswith("workload+github+"), len(name), secret) == (True, 56, b"job-1")


def test_another_job_gateway_platform_audience_scope_or_authority_has_another_file() -> None:
    names = [
        entry(),
        entry({b"ACTIONS_ID_TOKEN_REQUEST_TOKEN": b"job-2"}),
        entry(server="https://other.example"),
        entry({b"OSTIARY_ID_TOKEN": b"job-1"}, **{"from": "gitlab"}),
        entry(audience="other"),
        entry(can="get pods"),
        entry(can="get pods\nlist pods"),
        entry(scope="get pods"),
        entry(ca="authority.pem"),
    ]
    assert None not in names
    assert len({pair[0] for pair in names if pair is not None}) == len(names)


def test_parts_cannot_be_shifted_between_the_fields_of_a_name() -> None:
    assert entry(audience="a", can="bc") != entry(audience="ab", can="c")


@pytest.mark.parametrize("platform", ["github", "gitlab", "kubernetes", "spiffe", "file"])
def test_without_a_secret_of_the_job_nothing_is_kept(platform: str) -> None:
    assert entry({}, **{"from": platform}) is None


def test_an_empty_secret_is_none() -> None:
    assert entry({b"ACTIONS_ID_TOKEN_REQUEST_TOKEN": b""}) is None


def test_the_secret_of_a_pod_is_its_projected_token_else_its_own_and_a_rotation_changes_it(paths: Path) -> None:
    (paths / "pod").write_text("own\n")
    own = entry({}, **{"from": "kubernetes"})
    (paths / "projected").write_text("first\n")
    first = entry({}, **{"from": "kubernetes"})
    (paths / "projected").write_text("second\n")
    second = entry({}, **{"from": "kubernetes"})
    assert [pair[1] for pair in (own, first, second) if pair] == [b"own", b"first", b"second"]
    assert len({own, first, second}) == 3


def test_a_gitlab_variable_may_have_another_name() -> None:
    assert entry({b"MY_TOKEN": b"x"}, **{"from": "gitlab", "token-variable": "MY_TOKEN"}) is not None


# --- sealing ---


@settings(max_examples=200)
@given(
    content=st.binary(max_size=300),
    secret=st.binary(min_size=1, max_size=200),
    nonce=st.binary(min_size=16, max_size=16),
)
def test_what_is_sealed_is_opened_with_the_same_secret_and_no_other(
    content: bytes, secret: bytes, nonce: bytes
) -> None:
    sealed = seal(content, secret, renew_at=5, nonce=nonce)
    assert unseal(sealed, secret) == content
    assert unseal(sealed, secret + b"x") is None
    assert renewal_time(sealed) == 5


@settings(max_examples=200)
@given(at=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_changed_bit_anywhere_is_noticed(at: int, bit: int) -> None:
    sealed = bytearray(seal(b"c" * 150, b"secret", renew_at=12345, nonce=NONCE))
    sealed[at % len(sealed)] ^= 1 << bit
    assert unseal(bytes(sealed), b"secret") is None


@settings(max_examples=100)
@given(data=st.binary(max_size=100))
def test_nothing_is_made_of_what_is_no_such_file(data: bytes) -> None:
    assert unseal(data, b"secret") is None
    assert renewal_time(data) is None


def test_nothing_of_the_content_or_the_secret_is_in_the_sealed_file() -> None:
    content, secret = b"ost_c4n4ry0c4n4ry" * 20, b"job-secret-c4n4ry"
    sealed = seal(content, secret, renew_at=5, nonce=NONCE)
    for start in range(0, len(content) - 8, 8):
        assert content[start : start + 8] not in sealed
    assert secret not in sealed


def test_two_files_of_one_job_have_nothing_in_common() -> None:
    """The same content, sealed twice: a nonce of its own makes every block another one."""
    first, second = (seal(b"c" * 640, b"secret", renew_at=5, nonce=bytes([each]) * 16) for each in (1, 2))
    blocks = [{sealed[at : at + 64] for at in range(80, len(sealed), 64)} for sealed in (first, second)]
    assert not blocks[0] & blocks[1]
    assert len(blocks[0]) > 8
