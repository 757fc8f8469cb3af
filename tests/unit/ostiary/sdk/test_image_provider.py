"""A credential provider made with the SDK, as the kubelet sees it: a process, its stdout, its stderr, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import AnswerInvalid, ConfigurationError
from ostiary.model import Secret
from ostiary.sdk import ImageCredentials, ImageRequest, image_provider
from ostiary.wire.credential_provider import (
    API_VERSIONS,
    CacheKeyType,
    ProviderDialect,
    Request,
    decode_response,
    encode_request,
)
from ostiary_gateway.testing import FakeClock

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "registry.example.com:5000/team/app"

TEMPLATE = """\
#!{python}
import os, subprocess, sys
from datetime import timedelta
from ostiary.sdk import ImageCredentials, ImageRequest, image_provider
print("early")
@image_provider
{define} main(request: ImageRequest):
{body}
if __name__ == "__main__":
    main()
"""


def run(
    folder: Path,
    body: str,
    *,
    stdin: bytes | None = None,
    define: str = "def",
    variables: dict[str, str] | None = None,
    **request: Any,
) -> subprocess.CompletedProcess[bytes]:
    path = folder / "acme-provider"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(TEMPLATE.format(python=sys.executable, define=define, body=lines))
    path.chmod(0o755)
    asked = encode_request(Request(**{"image": IMAGE, **request})) if stdin is None else stdin
    environ = {**os.environ, "PYTHONUNBUFFERED": "", **(variables or {})}
    return subprocess.run([path, "get-credentials"], input=asked, env=environ, capture_output=True, timeout=100)


# --- the answer ---


@pytest.mark.parametrize("version", API_VERSIONS)
def test_the_answer_is_in_the_version_that_was_asked_for(tmp_path: Path, version: str) -> None:
    body = f'return ImageCredentials.for_registry("robot", "{CANARY}", cache=timedelta(minutes=10))'
    done = run(tmp_path, body, api_version=version)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "kind": "CredentialProviderResponse",
        "apiVersion": version,
        "cacheKeyType": "Registry",
        "cacheDuration": "10m0s",
        "auth": {"registry.example.com:5000": {"username": "robot", "password": CANARY}},
    }
    assert done.stderr == b"early\n"


def test_help_tells_what_the_author_wrote_about_it(tmp_path: Path) -> None:
    run(tmp_path, '"""A login for ``acme``."""\nraise AssertionError("it is not asked")')
    done = subprocess.run([tmp_path / "acme-provider", "--help"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: acme-provider" in done.stdout
    assert "A login for acme." in done.stdout


def test_who_asks_in_the_words_of_the_proposal_is_answered_in_them(clock: FakeClock) -> None:
    @image_provider
    def main(request: ImageRequest) -> ImageCredentials:
        return ImageCredentials.for_registry("robot", "pw", cache=timedelta(minutes=10))

    answer = json.loads(main.answer(stdin=b'{"image":"registry.example.com/app"}\n', clock=clock))
    assert answer == {"username": "robot", "password": "pw", "expirationTimestamp": "2026-01-01T00:10:00Z"}


def test_to_the_proposal_nothing_is_answered_as_nothing(clock: FakeClock) -> None:
    nothing = image_provider(lambda request: None)
    asked = Request(IMAGE, dialect=ProviderDialect.PROPOSAL)
    answer = nothing.answer(stdin=encode_request(asked), clock=clock).encode()
    assert decode_response(answer, asked, now=clock.now()).auth == {}


def test_the_function_is_told_what_the_kubelet_tells(tmp_path: Path) -> None:
    body = (
        "assert request.image == 'registry.example.com:5000/team/app'\n"
        "assert request.registry == 'registry.example.com:5000'\n"
        f"assert request.service_account_token.reveal() == '{CANARY}'\n"
        "assert request.annotations == {'a': 'b'}\n"
        "assert request.api_version.endswith('/v1')\n"
    )
    token = Secret(CANARY)
    done = run(tmp_path, body, service_account_token=token, service_account_annotations={"a": "b"})
    assert done.returncode == 0, done.stderr
    assert "auth" not in json.loads(done.stdout)


def test_a_request_does_not_show_its_token() -> None:
    assert CANARY not in repr(ImageRequest(IMAGE, Secret(CANARY)))
    assert CANARY not in repr(ImageCredentials.for_image("robot", CANARY))


def test_an_async_function_is_awaited(tmp_path: Path) -> None:
    body = 'import asyncio\nawait asyncio.sleep(0)\nreturn ImageCredentials.for_image("robot", "pw")'
    done = run(tmp_path, body, define="async def")
    assert json.loads(done.stdout)["auth"] == {IMAGE: {"username": "robot", "password": "pw"}}


def test_stray_output_goes_to_stderr_and_spoils_nothing(tmp_path: Path) -> None:
    body = 'print("stray")\nos.system("echo stray too")\nreturn ImageCredentials.for_image("robot", "pw")'
    done = run(tmp_path, body)
    assert json.loads(done.stdout)["cacheKeyType"] == "Image"
    assert done.stderr.split(b"\n")[:3] == [b"early", b"stray", b"stray too"]


# --- failures ---


def test_an_exception_is_one_message_and_exit_code_1(tmp_path: Path) -> None:
    done = run(tmp_path, f'raise RuntimeError("refused; password={CANARY}")')
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"acme-provider: RuntimeError: refused" in done.stderr
    assert CANARY.encode() not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("stdin", [b"", b"not json", b'{"kind":"Pod","apiVersion":"v1"}', b'{"image":""}', b"[]"])
def test_a_broken_request_is_told_with_its_code_and_nothing_is_run(tmp_path: Path, stdin: bytes) -> None:
    done = run(tmp_path, 'os.write(2, b"the function ran")', stdin=stdin)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"credential-provider-request-invalid" in done.stderr
    assert b"the function ran" not in done.stderr


def test_a_wrong_result_is_an_error_and_not_an_answer() -> None:
    wrong = image_provider(lambda request: CANARY)  # type: ignore[arg-type,return-value]
    with pytest.raises(AnswerInvalid) as caught:
        wrong.answer(stdin=encode_request(Request(IMAGE)))
    assert CANARY not in str(caught.value)
    with pytest.raises(ConfigurationError):
        wrong.answer(stdin=b"")


@pytest.mark.parametrize("password", ["\ud800", None, b"bytes"])
def test_a_password_that_no_registry_could_be_sent_is_refused(password: Any) -> None:
    with pytest.raises(ValueError) as caught:
        ImageCredentials.for_image("robot", password)
    assert "password is not text" in str(caught.value)


# --- what may be kept for which images ---


def response_of(credentials: ImageCredentials, image: str = IMAGE) -> tuple[str, list[str]]:
    response = credentials.response(ImageRequest(image))
    return response.cache_key_type.value, list(response.auth)


def test_what_is_kept_follows_from_what_the_key_is_for(subtests: pytest.Subtests) -> None:
    cases = [
        (ImageCredentials.for_registry("u", "p"), "Registry", "registry.example.com:5000"),
        (ImageCredentials.for_image("u", "p"), "Image", IMAGE),
        (ImageCredentials.for_key("*.example.com", "u", "p"), "Registry", "*.example.com"),
        (ImageCredentials.for_key("*.example.com/", "u", "p"), "Registry", "*.example.com/"),
        (ImageCredentials.for_key("https://x.example.com/v2/", "u", "p"), "Registry", "https://x.example.com/v2/"),
        (ImageCredentials.for_key("x.example.com/team", "u", "p"), "Image", "x.example.com/team"),
        (
            ImageCredentials.for_key("x.example.com", "u", "p", cache_key_type=CacheKeyType.IMAGE),
            "Image",
            "x.example.com",
        ),
    ]
    for credentials, kept_for, key in cases:
        with subtests.test(credentials=credentials, kept_for=kept_for, key=key):
            assert response_of(credentials) == (kept_for, [key])


@pytest.mark.parametrize(
    ("pattern", "kept_for"),
    [
        ("x.example.com/team", CacheKeyType.REGISTRY),
        ("x.example.com/v2/team", CacheKeyType.REGISTRY),
        ("x.example.com", CacheKeyType.GLOBAL),
        ("*.*", CacheKeyType.GLOBAL),
        ("x.example.com/*", None),
    ],
)
def test_an_answer_that_other_images_would_find_and_not_match_is_refused(
    pattern: str, kept_for: CacheKeyType | None
) -> None:
    with pytest.raises(ValueError) as caught:
        ImageCredentials.for_key(pattern, "robot", CANARY, cache_key_type=kept_for)
    assert CANARY not in str(caught.value)


def test_an_image_whose_path_looks_like_the_api_is_answered_with_a_key_that_matches() -> None:
    image = "registry.example.com/v2/app"
    assert response_of(ImageCredentials.for_image("u", "p"), image) == ("Image", ["registry.example.com"])


def test_nothing_is_not_kept_unless_told() -> None:
    request = ImageRequest(IMAGE)
    assert ImageCredentials.none().response(request).cache_duration == timedelta(0)
    kept = ImageCredentials.none(cache=timedelta(minutes=1), cache_key_type=CacheKeyType.GLOBAL).response(request)
    assert (kept.cache_duration, kept.cache_key_type, kept.auth) == (timedelta(minutes=1), CacheKeyType.GLOBAL, {})


def test_a_negative_cache_is_refused() -> None:
    with pytest.raises(ValueError):
        ImageCredentials.for_registry("u", "p", cache=timedelta(seconds=-1))


def test_the_decorator_has_its_name_whichever_module_was_imported_first() -> None:
    script = (
        "import ostiary.sdk.image_provider; from ostiary.sdk import image_provider; "
        "print(image_provider(lambda request: None).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ})
    assert done.stdout == "<lambda>\n", done.stderr


# --- switched off ---


def test_a_provider_that_is_switched_off_has_no_credentials_and_its_function_is_not_called(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    body = 'print("called")\nreturn ImageCredentials.for_registry("robot", "s3cret")'
    switches = tmp_path / "switches"
    file = {"OSTIARY_REGISTRY_SWITCHES": str(switches)}
    for case, line, variables in [
        ("by the variable", "", {"OSTIARY_REGISTRY_PROVIDERS": "off"}),
        ("by its name", "acme-provider 2026-11-15T10:00:00Z slow", file),
        ("with all others", "* 2026-11-15T10:00:00Z", file),
    ]:
        with subtests.test(case):
            switches.write_text(f"{line}\n")
            done = run(tmp_path, body, variables=variables)
            assert done.returncode == 0
            answer = json.loads(done.stdout)
            assert "auth" not in answer or not answer["auth"]
            assert answer["cacheDuration"] in ("0s", "0")
            assert b"called" not in done.stderr
            assert b"disabled by" in done.stderr
    with subtests.test("another provider is off"):
        switches.write_text("another-provider 2026-11-15T10:00:00Z\n")
        done = run(tmp_path, body, variables=file)
        assert b"called" in done.stderr
        assert b"s3cret" in done.stdout
    with subtests.test("nobody can tell"):
        done = run(tmp_path, body, variables={"OSTIARY_REGISTRY_PROVIDERS": "maybe"})
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"unknown value" in done.stderr
        assert b"called" not in done.stderr
