"""Every mistake the kubelet refuses is refused, each at its place, and all of them at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.model import Problem
from ostiary.registry.kubelet.config import load, loads
from ostiary.registry.kubelet.document import CONFIG_V1
from ostiary.wire.credential_provider import V1, V1ALPHA1, V1BETA1

ATTRIBUTES: dict[str, Any] = {
    "serviceAccountTokenAudience": "audience",
    "cacheType": "ServiceAccount",
    "requireServiceAccount": True,
    "requiredServiceAccountAnnotationKeys": ["prefix.io/annotation-1", "prefix.io/annotation-2"],
    "optionalServiceAccountAnnotationKeys": ["prefix.io/annotation-3", "prefix.io/annotation-4"],
}
GOOD: dict[str, Any] = {
    "name": "foobar",
    "matchImages": ["foobar.registry.io"],
    "defaultCacheDuration": "1m",
    "apiVersion": V1,
}


def changed(fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """*fields* with some *changes*; None takes a field out."""
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def text_of(*providers: dict[str, Any]) -> str:
    # Indented, so that every value has a line of its own.
    fields = {"apiVersion": CONFIG_V1, "kind": "CredentialProviderConfig", "providers": providers}
    return json.dumps(fields, indent=1)


def problems_of(*providers: dict[str, Any], **options: Any) -> tuple[Problem, ...]:
    with pytest.raises(ConfigurationError) as caught:
        loads(text_of(*providers), name="config.yaml", **options)
    assert caught.value.code == "config-invalid"
    return caught.value.problems


def line_of(text: str, value: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if value in line)


QUALIFIED = "must start and end with an alphanumeric character"


def test_a_provider_is_checked(subtests: pytest.Subtests) -> None:
    """Test_validateCredentialProviderConfig: one mistake each."""
    cases: list[tuple[dict[str, Any], str, str]] = [
        # V2 to V5
        ({"name": "foo/../bar"}, "name", "provider name cannot contain '/'"),
        ({"name": "foo bar"}, "name", "provider name cannot contain spaces"),
        ({"name": "."}, "name", "provider name cannot be '.'"),
        ({"name": ".."}, "name", "provider name cannot be '..'"),
        # V7, V8
        ({"apiVersion": None}, "apiVersion", "apiVersion is required"),
        ({"apiVersion": ""}, "apiVersion", "apiVersion is required"),
        (
            {"apiVersion": "credentialprovider.kubelet.k8s.io/v1alpha0"},
            "apiVersion",
            'unsupported value: apiVersion "credentialprovider.kubelet.k8s.io/v1alpha0"',
        ),
        # V9, V10
        ({"matchImages": None}, "matchImages", "at least 1 item in matchImages is required"),
        ({"matchImages": []}, "matchImages", "at least 1 item in matchImages is required"),
        (
            {"matchImages": ["%invalid%"]},
            "matchImages[0]",
            'match image is invalid: parse "https://%invalid%": invalid URL escape "%in"',
        ),
        ({"matchImages": ["a.io", "a.io:*"]}, "matchImages[1]", 'invalid port ":*" after host'),
        # V11, V12
        ({"defaultCacheDuration": None}, "defaultCacheDuration", "defaultCacheDuration is required"),
        ({"defaultCacheDuration": "-1m"}, "defaultCacheDuration", '"-1m0s": '),
        (
            {"defaultCacheDuration": "-1ns"},
            "defaultCacheDuration",
            "defaultCacheDuration must be greater than or equal to 0",
        ),
    ]
    for changes, path, said in cases:
        with subtests.test(changes=changes, path=path, said=said):
            (problem,) = problems_of(changed(GOOD, **changes))
            assert problem.place.path == f"providers[0].{path}"
            assert said in problem.message
            assert problem.place.file == "config.yaml"
            assert problem.place.line
            assert problem.hint


def test_the_known_versions_are_listed_in_order() -> None:
    (problem,) = problems_of(changed(GOOD, apiVersion="x"))
    assert problem.hint == f"use one of {V1}, {V1ALPHA1}, {V1BETA1}"


def test_there_must_be_a_provider() -> None:
    (problem,) = problems_of()
    assert problem.place.path == "providers"
    assert problem.message == "at least 1 item in plugins is required"


def test_there_must_be_a_provider_in_one_file_of_a_directory(tmp_path: Path) -> None:
    """An empty file among others does no harm."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(text_of())
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        load(tmp_path)
    assert caught.value.cause == "at least 1 item in plugins is required"
    (tmp_path / "b.json").write_text(text_of(GOOD))
    assert len(load(tmp_path).providers) == 1


def test_a_name_must_stand_once() -> None:
    (problem,) = problems_of(GOOD, GOOD)
    assert problem.place.path == "providers[1].name"
    assert 'duplicate provider name "foobar"' in problem.message


def test_a_good_provider_is_taken() -> None:
    assert loads(text_of(GOOD))
    assert loads(text_of(changed(GOOD, defaultCacheDuration="0s")))


def test_an_empty_name_is_taken_as_long_as_no_executable_is_asked_for() -> None:
    """The kubelet's validation lets it pass."""
    assert loads(text_of(changed(GOOD, name=""))).providers[0].name == ""


def test_arguments_and_the_names_of_variables_are_not_checked() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "", "value": "="}, {"name": "a=b"}]
    (one,) = loads(text_of(changed(GOOD, env=env, args=["", "-x", "$HOME"]))).providers
    assert one.env == (("A", "1"), ("A", "2"), ("", "="), ("a=b", ""))
    assert one.args == ("", "-x", "$HOME")


# --- tokenAttributes ---


def test_token_attributes_are_checked(subtests: pytest.Subtests) -> None:
    """Test_validateCredentialProviderConfig: one mistake each."""
    cases: list[tuple[dict[str, Any], str, str]] = [
        # V14, V15
        ({"serviceAccountTokenAudience": ""}, ".serviceAccountTokenAudience", "is required"),
        ({"serviceAccountTokenAudience": None}, ".serviceAccountTokenAudience", "is required"),
        ({"requireServiceAccount": None}, ".requireServiceAccount", "requireServiceAccount is required"),
        # V17
        (
            {"requireServiceAccount": False},
            ".requiredServiceAccountAnnotationKeys",
            "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
        ),
        # V18
        (
            {"requiredServiceAccountAnnotationKeys": ["cantendwithadash-"]},
            ".requiredServiceAccountAnnotationKeys[0]",
            QUALIFIED,
        ),
        (
            {"optionalServiceAccountAnnotationKeys": ["good", "cantendwithadash-"]},
            ".optionalServiceAccountAnnotationKeys[1]",
            QUALIFIED,
        ),
        # V19
        (
            {"requiredServiceAccountAnnotationKeys": ["a.io/x", "a.io/x"]},
            ".requiredServiceAccountAnnotationKeys[1]",
            '"a.io/x" is a duplicate entry in this list',
        ),
        (
            {"optionalServiceAccountAnnotationKeys": ["a.io/x", "a.io/x"]},
            ".optionalServiceAccountAnnotationKeys[1]",
            '"a.io/x" is a duplicate entry in this list',
        ),
        # V20
        (
            {"optionalServiceAccountAnnotationKeys": ["prefix.io/annotation-1"]},
            "",
            'annotation keys cannot be both required and optional: "prefix.io/annotation-1"',
        ),
        # V21, V22
        ({"cacheType": None}, ".cacheType", "cacheType is required to be set when tokenAttributes is specified"),
        ({"cacheType": ""}, ".cacheType", "cacheType is required to be set when tokenAttributes is specified"),
        ({"cacheType": "invalid-cache-type"}, ".cacheType", 'unsupported value: cacheType "invalid-cache-type"'),
    ]
    for changes, path, said in cases:
        with subtests.test(changes=changes, path=path, said=said):
            (problem,) = problems_of(changed(GOOD, tokenAttributes=changed(ATTRIBUTES, **changes)))
            assert problem.place.path == f"providers[0].tokenAttributes{path}"
            assert said in problem.message
            assert problem.place.line


@pytest.mark.parametrize("cache_type", ["ServiceAccount", "Token"])
def test_good_token_attributes_are_taken(cache_type: str) -> None:
    assert loads(text_of(changed(GOOD, tokenAttributes=changed(ATTRIBUTES, cacheType=cache_type))))


def test_the_cache_types_are_named() -> None:
    (problem,) = problems_of(changed(GOOD, tokenAttributes=changed(ATTRIBUTES, cacheType=None)))
    assert problem.hint == "supported values are ServiceAccount, Token"


def test_token_attributes_need_the_feature_gate() -> None:
    (problem,) = problems_of(changed(GOOD, tokenAttributes=ATTRIBUTES), service_account_tokens=False)
    assert problem.place.path == "providers[0].tokenAttributes"
    assert "KubeletServiceAccountTokenForCredentialProviders" in problem.message


@pytest.mark.parametrize("version", [V1ALPHA1, V1BETA1])
def test_token_attributes_need_a_provider_of_v1(version: str) -> None:
    (problem,) = problems_of(changed(GOOD, apiVersion=version, tokenAttributes=ATTRIBUTES))
    assert problem.place.path == "providers[0].tokenAttributes"
    assert problem.message == f"tokenAttributes is only supported for {V1} API version"


def test_requiring_no_service_account_is_fine_without_required_annotations() -> None:
    attributes = changed(ATTRIBUTES, requireServiceAccount=False, requiredServiceAccountAnnotationKeys=None)
    assert loads(text_of(changed(GOOD, tokenAttributes=attributes)))


def test_annotation_keys_are_qualified_names_of_any_case(subtests: pytest.Subtests) -> None:
    for key in ["a", "A", "Domain.IO/Name", "a.io/b", "a.b-c.io/a_b.c-d", "1/2", "a.io/" + "x" * 63, "x" * 253 + "/y"]:
        with subtests.test(key=key):
            assert loads(
                text_of(changed(GOOD, tokenAttributes=changed(ATTRIBUTES, optionalServiceAccountAnnotationKeys=[key])))
            )


def test_other_annotation_keys_are_refused(subtests: pytest.Subtests) -> None:
    for key in [
        "",
        "/a",
        "a/",
        "a/b/c",
        "-a",
        "a-",
        "a b",
        "a_b/c",
        ".a/b",
        "a..b/c",
        "é",
        "a\n",
        "x" * 64,
        "x" * 254 + "/y",
    ]:
        with subtests.test(key=key):
            attributes = changed(ATTRIBUTES, optionalServiceAccountAnnotationKeys=[key])
            (problem,) = problems_of(changed(GOOD, tokenAttributes=attributes))
            assert problem.place.path.endswith("optionalServiceAccountAnnotationKeys[0]")
            assert "is not an annotation key" in problem.message


def test_all_mistakes_are_told_in_the_order_of_their_lines() -> None:
    """All errors are collected, not the first only."""
    bad = {
        "name": "a/b c",
        "matchImages": ["good.io", "%zz", "a b"],
        "defaultCacheDuration": "1d",
        "apiVersion": "x",
        "tokenAttributes": {"cacheType": "y"},
        "unknown": 1,
    }
    text = text_of(bad, changed(GOOD, defaultCacheDuration=None))
    with pytest.raises(ConfigurationError) as caught:
        loads(text)
    found = [(problem.place.path, problem.place.line) for problem in caught.value.problems]
    attributes = line_of(text, "tokenAttributes")
    assert found == [
        ("providers[0].name", line_of(text, "a/b c")),
        ("providers[0].name", line_of(text, "a/b c")),
        ("providers[0].matchImages[1]", line_of(text, "%zz")),
        ("providers[0].matchImages[2]", line_of(text, "a b")),
        ("providers[0].defaultCacheDuration", line_of(text, "1d")),
        ("providers[0].apiVersion", line_of(text, '"x"')),
        ("providers[0].tokenAttributes", attributes),
        ("providers[0].tokenAttributes.requireServiceAccount", attributes),
        ("providers[0].tokenAttributes.serviceAccountTokenAudience", attributes),
        ("providers[0].tokenAttributes.cacheType", attributes + 1),
        ("providers[0].unknown", line_of(text, "unknown")),
        ("providers[1].defaultCacheDuration", line_of(text, "unknown") + 2),
    ]


def test_a_password_in_a_pattern_is_not_shown() -> None:
    (problem,) = problems_of(changed(GOOD, matchImages=["user:hunter2@re gistry.io"]))
    assert "hunter2" not in str(problem) + str(problem.hint)


# --- the executables ---


@pytest.mark.parametrize(
    "pattern", ["user:hunter2/x@registry.io", "user:hunter2/a@b@registry.io:x", "hunter2%zz@registry.io"]
)
def test_what_stands_before_an_at_sign_is_quoted_neither_whole_nor_in_the_reason(pattern: str) -> None:
    (problem,) = problems_of(changed(GOOD, matchImages=[pattern]))
    assert "match image is invalid" in problem.message
    assert "hunter2" not in str(problem)


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    executable = directory / "foobar"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    return directory


def test_an_executable_in_the_directory_is_found(bin_dir: Path) -> None:
    assert loads(text_of(GOOD), bin_dir=bin_dir)


def test_an_executable_may_be_a_link(bin_dir: Path) -> None:
    (bin_dir / "link").symlink_to("foobar")
    assert loads(text_of(changed(GOOD, name="link")), bin_dir=str(bin_dir))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    (problem,) = problems_of(GOOD, bin_dir=tmp_path / "bin")
    assert problem.message == f"plugin binary directory {tmp_path / 'bin'} did not exist"
    assert problem.hint


def test_a_missing_executable_is_named_with_its_path(bin_dir: Path) -> None:
    """Unlike the kubelet, which shows an empty path. I8."""
    (problem,) = problems_of(changed(GOOD, name="missing"), bin_dir=bin_dir)
    assert problem.message == f"plugin binary executable {bin_dir / 'missing'} did not exist"
    assert problem.place.path == "providers[0].name"
    assert problem.hint


def test_a_file_that_is_not_executable_is_refused(bin_dir: Path) -> None:
    """I8."""
    os.chmod(bin_dir / "foobar", 0o644)
    (problem,) = problems_of(GOOD, bin_dir=bin_dir)
    assert problem.message == f"error inspecting binary executable {bin_dir / 'foobar'}: it is not executable"
    assert problem.hint == f"chmod +x {bin_dir / 'foobar'}"


def test_a_directory_is_no_executable(bin_dir: Path) -> None:
    (bin_dir / "dir").mkdir()
    (problem,) = problems_of(changed(GOOD, name="dir"), bin_dir=bin_dir)
    assert "it is a directory" in problem.message


def test_an_empty_name_is_no_executable(bin_dir: Path) -> None:
    """It would be the directory itself."""
    (problem,) = problems_of(changed(GOOD, name=""), bin_dir=bin_dir)
    assert problem.message == "the provider has no name"


def test_missing_executables_are_told_together_with_other_mistakes(bin_dir: Path) -> None:
    found = problems_of(changed(GOOD, name="missing", apiVersion="x"), changed(GOOD, name="also"), bin_dir=bin_dir)
    assert [problem.place.path for problem in found] == [
        "providers[0].apiVersion",
        "providers[0].name",
        "providers[1].name",
    ]
