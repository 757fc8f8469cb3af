"""Lint names each mistake with its line and its fix, also in a configuration that does not load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.conformance.lint import Lint, lint, star_in_path
from ostiary.model import Place
from ostiary.registry.image_matching import matches
from ostiary.registry.image_name import parse_address
from ostiary.registry.lint_document import LintFinding, Severity, WrittenPattern

GROUP = "credentialprovider.kubelet.k8s.io"


def provider(name: str = "acme", *patterns: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "matchImages": list(patterns or ("registry.example.com",)),
        "defaultCacheDuration": "10m",
        "apiVersion": f"{GROUP}/v1",
        **fields,
    }


def write(folder: Path, *providers: dict[str, Any], **fields: Any) -> Path:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": list(providers),
        **fields,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path


def rules(found: Lint) -> list[str]:
    return [finding.rule for finding in found.findings]


def only(found: Lint) -> LintFinding:
    assert len(found.findings) == 1, rules(found)
    return found.findings[0]


def lint_pattern(folder: Path, pattern: str) -> Lint:
    return lint(write(folder, provider("acme", pattern)))


def test_a_configuration_without_mistakes_has_no_findings(tmp_path: Path) -> None:
    found = lint(write(tmp_path, provider("acme", "registry.example.com", "*.registry.example.com")))
    assert (found.loads, found.ok, found.findings) == (True, True, ())


def test_a_pattern_that_surprises_people_is_found(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("harbor.example.com/*", "star-in-path", Severity.ERROR, '"harbor.example.com"'),
        ("harbor.example.com/*/*", "star-in-path", Severity.ERROR, '"harbor.example.com"'),
        ("*.example.com/team/*", "star-in-path", Severity.ERROR, '"*.example.com/team/"'),
        ("https://registry.io/x/", "scheme-in-pattern", Severity.ERROR, '"registry.io/x/"'),
        ("GCR.io", "upper-case-host", Severity.WARNING, '"gcr.io"'),
        ("gcr.io/Team/", "upper-case-path", Severity.ERROR, '"gcr.io/team/"'),
        ("index.docker.io", "docker-hub-name", Severity.ERROR, '"docker.io"'),
        ("registry-1.docker.io", "docker-hub-name", Severity.WARNING, '"docker.io"'),
        ("*", "star-alone", Severity.WARNING, '"*.*"'),
        ("gcr.io/foo", "open-path-prefix", Severity.WARNING, '"gcr.io/foo/"'),
        ("gcr.io:443", "port-twin", Severity.WARNING, '"gcr.io"'),
        ("gcr.io:5000", "port-twin", Severity.INFO, '"gcr.io"'),
        ("localhost", "port-twin", Severity.INFO, '"localhost:5000"'),
        ("127.*.*.*", "port-twin", Severity.INFO, ":5000"),
    ]
    for pattern, rule, severity, fix in cases:
        with subtests.test(pattern=pattern, rule=rule, severity=severity, fix=fix):
            tmp_path = tmp_path_factory.mktemp("case")
            finding = only(lint_pattern(tmp_path, pattern))
            assert (finding.rule, finding.severity) == (rule, severity)
            assert fix in finding.fix
            assert finding.place.path == "providers[0].matchImages[0]"
            assert finding.place.line == 8


@pytest.mark.parametrize("pattern", ["gcr.io/foo/", "*.dkr.ecr.*.amazonaws.com", "gcr.io/", "docker.io"])
def test_patterns_that_mean_what_they_say_are_left_alone(tmp_path: Path, pattern: str) -> None:
    assert lint_pattern(tmp_path, pattern).findings == ()


@given(st.from_regex(r"[a-z]{1,5}(\.[a-z*]{1,4}){1,2}(/[a-z]{1,3}){0,2}/[a-z]{0,2}\*[a-z*/]{0,4}", fullmatch=True))
def test_the_fix_of_a_star_in_a_path_matches_what_was_meant(pattern: str) -> None:
    finding = star_in_path(WrittenPattern(pattern, Place(), "acme"), parse_address(pattern))
    assert finding is not None
    fixed = finding.fix.split('"')[1]
    assert matches(fixed, pattern.replace("*", "x"))


def test_a_password_in_a_pasted_url_is_not_shown(tmp_path: Path) -> None:
    found = lint_pattern(tmp_path, "https://robot:c4n4ry-c4n4ry@registry.io")
    assert "scheme-in-pattern" in rules(found)
    assert "c4n4ry" not in repr(found)


def test_an_unparsable_pattern_is_an_error_with_its_line(tmp_path: Path) -> None:
    finding = only(lint_pattern(tmp_path, "registry.io:*"))
    assert (finding.rule, finding.severity, finding.place.line) == ("pattern-unparsable", Severity.ERROR, 8)


def test_a_pattern_that_another_one_of_its_provider_covers_is_redundant(tmp_path: Path) -> None:
    found = lint(write(tmp_path, provider("acme", "*.registry.io", "a.registry.io", "*.registry.io")))
    assert rules(found) == ["redundant-pattern", "redundant-pattern"]
    assert [finding.place.path for finding in found.findings] == [
        "providers[0].matchImages[1]",
        "providers[0].matchImages[2]",
    ]
    assert found.ok


def test_two_providers_for_one_image_are_information_and_no_error(tmp_path: Path) -> None:
    found = lint(write(tmp_path, provider("one", "*.registry.io"), provider("two", "a.registry.io")))
    assert rules(found) == ["several-providers"]
    assert found.ok
    assert '"one"' in found.findings[0].message


def test_no_default_cache_is_a_warning(tmp_path: Path) -> None:
    finding = only(lint(write(tmp_path, provider(defaultCacheDuration="0s"))))
    assert (finding.rule, finding.severity) == ("no-default-cache", Severity.WARNING)


def test_token_attributes_come_with_the_role_that_the_nodes_need(tmp_path: Path) -> None:
    attributes = {
        "serviceAccountTokenAudience": "audience.example.com",
        "cacheType": "ServiceAccount",
        "requireServiceAccount": True,
    }
    found = lint(write(tmp_path, provider(tokenAttributes=attributes)))
    assert rules(found) == ["token-audience", "token-cache"]
    assert "request-serviceaccounts-token-audience" in found.findings[0].fix
    assert "audience.example.com" in found.findings[0].fix
    assert "Image, Registry or Global" in found.findings[1].message
    assert found.ok


def test_a_second_yaml_document_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, provider())
    path.write_text("# YAML\n" + path.read_text() + "\n---\nkind: CredentialProviderConfig\n")
    finding = only(lint(path))
    assert finding.rule == "second-document"
    assert finding.place.line == len(path.read_text().splitlines())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("}\n]", "},\n]"),
        ("\n}", "\n} # the end"),
        ("\n}", "\n}\n---\nkind: CredentialProviderConfig\n"),
        ('"acme"', "'acme'"),
        ('"name"', "name"),
    ],
)
def test_a_file_that_begins_with_a_brace_must_be_json(tmp_path: Path, before: str, after: str) -> None:
    """A kubelet does not start with it, although it would be YAML."""
    path = write(tmp_path, provider())
    text = path.read_text().replace(" ", "")
    assert before in text
    path.write_text("\t" + text.replace(before, after))
    found = lint(path)
    assert (rules(found), found.loads, found.ok) == (["not-json"], False, False)
    assert found.findings[0].place.line is not None
    path.write_text("\t" + text)
    assert lint(path).loads


def test_a_merged_field_that_is_overridden_is_told_as_repeated(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
        f"- &base {{name: a, apiVersion: {GROUP}/v1, matchImages: [a.example.com], defaultCacheDuration: 1m}}\n"
        "- <<: *base\n  name: b\n"
    )
    found = lint(path)
    assert not found.loads
    assert [(finding.rule, finding.place.line) for finding in found.findings if finding.severity is Severity.ERROR] == [
        ("repeated-field", 6)
    ]


def test_an_unquoted_star_is_told_as_such(tmp_path: Path) -> None:
    """I27."""
    path = tmp_path / "config.yaml"
    path.write_text("kind: CredentialProviderConfig\nproviders:\n- name: acme\n  matchImages:\n  - *.example.com\n")
    found = lint(path)
    assert (rules(found), found.loads, found.ok) == (["unquoted-star"], False, False)
    assert found.findings[0].place.line == 5
    assert "quotes" in found.findings[0].fix


def test_the_proposals_dialect_is_sent_to_migrate(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "kind: RegistryCredentialConfig\napiVersion: v1alpha1\n"
        'providers:\n- name: ecr-creds\n  imageMatchers: ["harbor.example.com/*"]\n'
    )
    found = lint(path)
    assert rules(found) == ["proposal-dialect", "star-in-path"]
    assert found.findings[0].fix == "ostiary registry migrate"


def test_in_the_proposals_dialect_a_host_alone_is_not_told_to_need_a_port(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = "kind: RegistryCredentialConfig\napiVersion: v1alpha1\nproviders:\n- name: acme\n  imageMatchers: "
    path.write_text(text + "[localhost]\n")
    assert rules(lint(path)) == ["proposal-dialect"]
    path.write_text(text + "[localhost, 'localhost:5000']\n")
    assert "redundant-pattern" in rules(lint(path))


def test_a_path_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    found = lint(tmp_path / "missing")
    assert (rules(found), found.files, found.ok) == (["does-not-load"], (), False)


def test_the_files_of_a_directory_are_judged_together(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml"):
        write(tmp_path, provider(name, "index.docker.io")).rename(tmp_path / name)
    found = lint(tmp_path)
    assert [Path(file).name for file in found.files] == ["a.yaml", "b.yaml"]
    hub = [finding for finding in found.findings if finding.rule == "docker-hub-name"]
    assert [Path(finding.place.file or "").name for finding in hub] == ["a.yaml", "b.yaml"]


# --- executables ---


def test_missing_and_unusable_executables_are_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(mode=0o755)
    (tmp_path / "bin" / "plain").write_text("#!/bin/sh\n")
    config = write(tmp_path, provider("gone", "a.registry.io"), provider("plain", "b.registry.io"))
    assert rules(lint(config, bin_dir=tmp_path / "bin")) == ["binary-missing", "binary-not-executable"]
    assert rules(lint(config, bin_dir=tmp_path / "nowhere")) == ["bin-dir-missing"]


def test_what_every_user_may_change_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    (folder / "acme").write_text("#!/bin/sh\n")
    (folder / "acme").chmod(0o757)
    config = write(tmp_path, provider())
    assert only(lint(config, bin_dir=folder)).fix == f"chmod o-w {folder / 'acme'}"
    folder.chmod(0o777)
    found = lint(config, bin_dir=folder)
    assert rules(found) == ["binary-world-writable"] * 2
    assert not found.ok


# --- three cases from the field ---


def test_a_provider_that_is_silently_never_run_for_three_reasons_at_once(tmp_path: Path) -> None:
    """A path glob, a missing role for the audience, and ServiceAccount in the place of a cacheKeyType."""
    attributes = {
        "serviceAccountTokenAudience": "harbor",
        "cacheType": "ServiceAccount",
        "requireServiceAccount": True,
    }
    found = lint(write(tmp_path, provider("acme", "harbor.example.com/*", tokenAttributes=attributes)))
    assert rules(found) == ["star-in-path", "token-audience", "token-cache"]
    assert not found.ok


def test_a_config_without_its_required_fields_is_told_which_ones(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text('kind: CredentialProviderConfig\nproviders:\n- name: acme\n  matchImages: ["registry.io/*"]\n')
    found = lint(path)
    assert rules(found) == ["missing-field", "star-in-path"]
    assert found.findings[0].message == "there is no apiVersion"
    path.write_text("apiVersion: kubelet.config.k8s.io/v1\n" + path.read_text())
    found = lint(path)
    assert rules(found) == ["missing-field", "missing-field", "star-in-path"]
    told = " ".join(finding.message for finding in found.findings)
    assert "defaultCacheDuration is required" in told
    assert "apiVersion is required for every provider" in told


def test_the_shipped_example_that_never_matched(tmp_path: Path) -> None:
    found = lint(write(tmp_path, provider("harbor", "harbor.example.com/*", "harbor.example.com/*/*")))
    assert rules(found).count("star-in-path") == 2
    assert not found.ok
