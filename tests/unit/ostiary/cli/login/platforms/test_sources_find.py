"""Each platform's proof: where it comes from, which ones are not sent, and what the job or pod lacks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ostiary.cli.login.platforms import sources as github
from ostiary.cli.login.platforms.proof import PlatformChoice, unverified_claims
from ostiary.cli.login.platforms.sources import find_proof
from ostiary.errors import CredentialError, OstiaryError, ProviderError
from tests.support.http_server import Response
from tests.support.platform_tokens import CANARY, REQUEST_CANARY, GitHubActions, unsigned_token

SERVER = "https://gateway.example"


def choice(platform: str = "auto", **fields: str) -> PlatformChoice:
    return PlatformChoice(SERVER, platform, **fields)  # type: ignore[arg-type]


def refusal(wanted: PlatformChoice, kind: type[OstiaryError] = CredentialError) -> OstiaryError:
    """The error; nothing of a token is in it, nor in what a traceback would show."""
    with pytest.raises(kind) as raised:
        find_proof(wanted)
    error = raised.value
    assert type(error) is kind
    shown = "".join(traceback.format_exception(error))
    assert CANARY not in shown
    assert REQUEST_CANARY not in shown
    assert error.__context__ is None or isinstance(error.__context__, OSError)
    assert error.hint
    assert error.where
    return error


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHubActions]:
    with GitHubActions(unsigned_token).running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


# --- github ---


def test_github_is_asked_for_a_token_with_the_gateways_audience(actions: GitHubActions) -> None:
    proof = find_proof(choice("github"))
    assert (proof.platform, proof.subject, actions.audiences) == ("github", "job-1", [SERVER])
    assert proof.where == actions.url.split("/")[2]
    assert CANARY not in repr(proof)


def test_an_audience_of_any_text_reaches_github_as_it_is(actions: GitHubActions) -> None:
    find_proof(choice("github", audience="a b&c=d/é"))
    assert actions.audiences == ["a b&c=d/é"]


def test_a_job_without_the_permission_is_told_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    error = refusal(choice())
    assert "may not ask GitHub" in (error.cause or "")
    assert "id-token: write" in (error.hint or "")


@pytest.mark.parametrize(
    "answer",
    [Response(403, {}), Response(500), Response(200, b"no JSON"), Response(200, {}), Response(200, {"value": 5})],
)
def test_an_answer_of_github_without_a_token_is_told(actions: GitHubActions, answer: Response) -> None:
    actions.refusal = answer
    assert "GitHub gave no ID token" in (refusal(choice("github")).cause or "")


def test_githubs_endpoint_that_is_away_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(github.URL_VARIABLE, "http://127.0.0.1:1/?api-version=2.0")
    monkeypatch.setenv(github.SECRET_VARIABLE, REQUEST_CANARY)
    assert refusal(choice("github"), ProviderError).code == "platform-unreachable"


@pytest.mark.parametrize("url", ["http://token.example/x", "ftp://token.example", "https://", "http://[", "x"])
def test_the_jobs_secret_is_sent_over_tls_or_not_at_all(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(github.URL_VARIABLE, url)
    monkeypatch.setenv(github.SECRET_VARIABLE, REQUEST_CANARY)
    assert "not an https address" in (refusal(choice("github")).cause or "")


# --- gitlab ---


def test_gitlabs_token_is_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("OSTIARY_ID_TOKEN", unsigned_token(SERVER))
    assert find_proof(choice()).where == "$OSTIARY_ID_TOKEN"
    monkeypatch.setenv("MINE", unsigned_token([SERVER, "other"], sub="job-2"))
    assert find_proof(choice("gitlab", token_variable="MINE")).subject == "job-2"


def test_a_gitlab_job_without_id_tokens_is_told_the_lines_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_CI", "true")
    error = refusal(choice())
    assert "$OSTIARY_ID_TOKEN" in (error.cause or "")
    assert "id_tokens:\n  OSTIARY_ID_TOKEN:\n    aud: https://gateway.example" in (error.hint or "")


# --- kubernetes ---


def test_a_projected_token_is_read_each_time(tmp_path: Path) -> None:
    for subject in ("system:serviceaccount:shop:a", "system:serviceaccount:shop:b"):
        (tmp_path / "projected").write_text(unsigned_token([SERVER], sub=subject) + "\n")
        assert find_proof(choice("kubernetes")).subject == subject


def test_a_token_file_may_be_named_by_option_or_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").write_text(unsigned_token(SERVER))
    for platform in ("kubernetes", "spiffe", "file"):
        named = find_proof(choice(platform, token_file=str(tmp_path / "elsewhere")))
        assert (named.platform, named.where) == (platform, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("OSTIARY_IDENTITY_TOKEN_FILE", str(tmp_path / "elsewhere"))
    assert [find_proof(choice(each)).platform for each in ("kubernetes", "spiffe", "auto")] == [
        "kubernetes",
        "spiffe",
        "file",
    ]


def test_outside_of_a_pod_kubernetes_says_which_volume_is_missing() -> None:
    error = refusal(choice("kubernetes"))
    assert "no projected token" in (error.cause or "")
    assert "audience: https://gateway.example" in (error.hint or "")


def test_a_pods_own_token_is_never_sent_to_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for the API server: whoever gets it could act as the pod there."""
    (tmp_path / "own").write_text(unsigned_token(["https://kubernetes.default.svc"]))
    error = refusal(choice("kubernetes", token_file=str(tmp_path / "own")))
    assert "is for https://kubernetes.default.svc, and not for https://gateway.example" in (error.cause or "")
    assert "projected volume" in (error.hint or "")


# --- files ---


@pytest.mark.parametrize("platform", ["spiffe", "file"])
def test_without_a_file_its_name_is_asked_for(platform: str) -> None:
    assert "--token-file" in (refusal(choice(platform)).hint or "")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.write_text(""),
        lambda path: path.write_text(CANARY),
        lambda path: path.write_text(f"a.{CANARY}.c"),
        lambda path: path.write_bytes(b"\xff" + CANARY.encode()),
        lambda path: path.write_text(unsigned_token(SERVER) * 1000),
        lambda path: path.write_text(unsigned_token(SERVER) + "\nmore"),
    ],
    ids=["missing", "folder", "empty", "word", "no-json", "no-text", "too-long", "two-lines"],
)
def test_what_is_no_token_is_not_quoted(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "token")
    refusal(choice("file", token_file=str(tmp_path / "token")))


@pytest.mark.parametrize("audience", ["", [], ["other"], "https://gateway.example/", 5, None])
def test_a_token_for_another_audience_stays_here(tmp_path: Path, audience: object) -> None:
    (tmp_path / "token").write_text(unsigned_token(audience))  # type: ignore[arg-type]
    assert "not for https://gateway.example" in (
        refusal(choice("file", token_file=str(tmp_path / "token"))).cause or ""
    )


def test_a_token_that_has_expired_stays_here(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(unsigned_token(SERVER, exp=1))
    error = refusal(choice("file", token_file=str(tmp_path / "token")))
    assert "expired" in (error.cause or "")
    assert "clock" in (error.hint or "")


# --- auto ---


def test_auto_that_finds_nothing_lists_what_it_looked_for() -> None:
    error = refusal(choice())
    for part in ("github", "gitlab", "kubernetes", "spiffe", "file"):
        assert f"{part}: " in (error.cause or "")


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c", "..", "a.e30.c.d", "a.bm8.c", "a.e30.\x00"])
def test_claims_are_read_from_nothing_but_a_jwt(token: str) -> None:
    assert unverified_claims(token) is None


def test_claims_of_a_jwt_are_read_without_padding() -> None:
    assert unverified_claims("a.e30.c") == {}
