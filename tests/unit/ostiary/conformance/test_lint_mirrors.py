"""Lint tells what a runtime would pass over in silence, and which mirrors nobody has a credential for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.conformance.lint import Lint, lint
from ostiary.conformance.lint_mirrors import lint_mirrors, registry_of
from ostiary.registry.lint_document import LintFinding, Severity

CANARY = "c4n4ry-c4n4ry"
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: acme
  matchImages: [PATTERNS]
  defaultCacheDuration: 10m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
"""


def hosts(tmp_path: Path, text: str, directory: str = "registry.example.com", file: str = "hosts.toml") -> Path:
    folder = tmp_path / "certs.d" / directory
    folder.mkdir(parents=True)
    (folder / file).write_text(text)
    return tmp_path / "certs.d"


def conf(tmp_path: Path, text: str) -> Path:
    (tmp_path / "registries.conf").write_text(text)
    return tmp_path / "registries.conf"


def of_hosts(root: Path) -> Lint:
    return lint_mirrors(None, hosts_dir=str(root))


def of_conf(file: Path) -> Lint:
    return lint_mirrors(None, registries_conf=str(file))


def rules(found: Lint) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.rule) for finding in found.findings]


def only(found: Lint) -> LintFinding:
    (finding,) = found.findings
    return finding


# --- hosts.toml ---


def test_a_good_directory_has_no_findings(tmp_path: Path) -> None:
    root = hosts(tmp_path, 'server = "https://registry.example.com"\n[host."https://m.example.net"]\n')
    found = of_hosts(root)
    assert (found.findings, found.ok) == ((), True)
    assert found.files == (str(root / "registry.example.com" / "hosts.toml"),)


def test_each_rule_about_a_hosts_file(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases = [
        ('[host."https://m.example.net"]\ncapabilities = ["pul"]\n', Severity.ERROR, "hosts-file-invalid"),
        ("x = \n", Severity.ERROR, "hosts-file-invalid"),
        ('[host."https://m.example.net"]\noveride_path = true\n', Severity.WARNING, "mirror-unknown-key"),
        ('[host."http://m.example.net"]\n', Severity.WARNING, "mirror-plain-http"),
        ('[host."https://m.example.net:80"]\n', Severity.WARNING, "mirror-port"),
        ('[host."https://m.example.net"]\nskip_verify = true\n', Severity.WARNING, "mirror-not-verified"),
        ('[host."https://m.example.net/project"]\n', Severity.WARNING, "mirror-path"),
        ('[host."https://m.example.net"]\ncapabilities = ["push"]\n', Severity.INFO, "mirror-not-used"),
        ('[host."https://m.example.net"]\ncapabilities = ["pull"]\n', Severity.INFO, "mirror-not-used"),
        (f'[host."https://u:{CANARY}@m.example.net"]\n', Severity.ERROR, "credential-in-mirrors"),
        (
            f'[host."https://m.example.net"]\n[host."https://m.example.net".header]\nCookie = "{CANARY}"\n',
            Severity.WARNING,
            "credential-in-mirrors",
        ),
        ('server = "https://registry.example.com"\n', Severity.WARNING, "hosts-file-without-host"),
        ('host = {"https://m.example.net" = {}}\n', Severity.WARNING, "mirror-passed-over"),
        (
            'server = "https://m.example.net"\n[host."https://m.example.net"]\n',
            Severity.INFO,
            "registry-not-asked",
        ),
    ]
    for text, severity, rule in cases:
        with subtests.test(text=text, severity=severity, rule=rule):
            tmp_path = tmp_path_factory.mktemp("case")
            finding = only(of_hosts(hosts(tmp_path, text)))
            assert (finding.severity, finding.rule) == (severity, rule)
            assert str(finding.place.file).endswith("hosts.toml")
            assert CANARY not in str(finding)


def test_plain_http_on_this_machine_is_nobodys_business(tmp_path: Path) -> None:
    assert of_hosts(hosts(tmp_path, '[host."http://127.0.0.1:5000"]\n[host."http://[::1]:5000"]\n')).findings == ()


@pytest.mark.parametrize(
    ("directory", "fix"),
    [
        ("registry.example.com_5000", "rename it to registry.example.com_5000_, or registry.example.com:5000"),
        ("registry.example.com__5000_", "rename it to registry.example.com_5000_, or registry.example.com:5000"),
        ("registry.example.com:", "name it after the registry"),
        ("_other", "name it after the registry"),
        ("*.example.com", "name it after the registry"),
    ],
)
def test_a_directory_that_no_registry_has_is_an_error(tmp_path: Path, directory: str, fix: str) -> None:
    finding = only(of_hosts(hosts(tmp_path, "", directory)))
    assert (finding.severity, finding.rule) == (Severity.ERROR, "hosts-dir-name")
    assert finding.fix.startswith(fix)


def test_the_registry_of_a_directory(subtests: pytest.Subtests) -> None:
    cases = [
        ("docker.io", "docker.io"),
        ("localhost:5000", "localhost:5000"),
        ("registry.example.com_5000_", "registry.example.com:5000"),
        ("[::1]_5000_", "[::1]:5000"),
        ("_default", ""),
        ("a_b", None),
    ]
    for directory, registry in cases:
        with subtests.test(directory=directory, registry=registry):
            assert registry_of(directory) == registry


def test_directories_and_files_that_are_never_read(tmp_path: Path) -> None:
    root = hosts(tmp_path, "", "registry.example.com:5000")
    hosts(tmp_path, "", "registry.example.com_5000_")
    hosts(tmp_path, "", "index.docker.io")
    hosts(tmp_path, "", "other.example.com", file="host.toml")
    assert sorted(rules(of_hosts(root)), key=str) == [
        (Severity.ERROR, "hosts-file-missing"),
        (Severity.WARNING, "hosts-dir-name"),
        (Severity.WARNING, "hosts-dir-shadowed"),
    ]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert rules(of_hosts(tmp_path / "missing")) == [(Severity.ERROR, "mirrors-unreadable")]
    assert rules(of_conf(tmp_path / "missing")) == [(Severity.ERROR, "registries-conf-invalid")]


# --- registries.conf ---


def test_each_rule_about_a_registries_conf(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases = [
        ("x = \n", Severity.ERROR, "registries-conf-invalid"),
        ('[[registry]]\nlocation = "a.net"\ninsecur = true\n', Severity.WARNING, "mirror-unknown-key"),
        (
            '[[registry]]\nlocation = "a.net"\n[[registry]]\nlocation = "a.net"\n',
            Severity.WARNING,
            "mirror-passed-over",
        ),
        ('[[registry]]\nlocation = "a.net"\ninsecure = true\n', Severity.WARNING, "mirror-not-verified"),
        ('[[registry]]\nlocation = "a.net"\nblocked = true\n', Severity.INFO, "registry-blocked"),
        ('[[registry]]\nprefix = "a.net/app:v1"\nlocation = "a.net/app:v1"\n', Severity.ERROR, "prefix-never-matches"),
        ('[[registry]]\nlocation = "a.*.net"\n', Severity.ERROR, "prefix-never-matches"),
        ('[[registry]]\nlocation = "library/nginx"\n', Severity.ERROR, "prefix-never-matches"),
        ('[[registry]]\nlocation = "docker.io/nginx"\n', Severity.WARNING, "prefix-without-library"),
    ]
    for text, severity, rule in cases:
        with subtests.test(text=text, severity=severity, rule=rule):
            tmp_path = tmp_path_factory.mktemp("case")
            finding = only(of_conf(conf(tmp_path, text)))
            assert (finding.severity, finding.rule) == (severity, rule)


def test_rules_about_mirrors_and_blocks(tmp_path: Path) -> None:
    text = """\
[[registry]]
prefix = "a.net"
location = "b.net"
blocked = true
[[registry.mirror]]
location = "m.net"
insecure = true
pull-from-mirror = "tag-only"
[[registry]]
location = "m.net"
blocked = true
"""
    assert rules(of_conf(conf(tmp_path, text))) == [
        (Severity.ERROR, "block-without-effect"),
        (Severity.WARNING, "mirror-not-verified"),
        (Severity.ERROR, "mirror-blocked"),
        (Severity.INFO, "mirror-not-used"),
        (Severity.INFO, "registry-blocked"),
    ]


def test_a_drop_in_that_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "registries.conf.d").mkdir()
    (tmp_path / "registries.conf.d" / "mirror.toml").touch()
    assert rules(of_conf(conf(tmp_path, ""))) == [(Severity.WARNING, "drop-in-not-read")]


# --- with the providers ---


def test_a_mirror_wants_a_provider_that_is_asked_for_it(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ('"m.example.net", "registry.example.com"', None),
        ('"*.example.net"', None),
        ('"m.example.net/team"', None),
        ('"registry.example.com"', "pattern-misses-mirror"),
        ('"registry.example.com/team"', "pattern-misses-mirror"),
        ('"m.example.net:5000"', "mirror-without-credential"),
        ('"other.example.org"', "mirror-without-credential"),
    ]
    for patterns, rule in cases:
        with subtests.test(patterns=patterns, rule=rule):
            tmp_path = tmp_path_factory.mktemp("case")
            config = tmp_path / "config.yaml"
            config.write_text(CONFIG.replace("PATTERNS", patterns))
            root = hosts(tmp_path, '[host."https://m.example.net"]\n')
            file = conf(
                tmp_path,
                '[[registry]]\nlocation = "registry.example.com"\n[[registry.mirror]]\nlocation = "m.example.net"\n',
            )
            found = lint_mirrors(lint(config), hosts_dir=str(root), registries_conf=str(file))
            about = [finding for finding in found.findings if "mirror" in finding.rule]
            assert [finding.rule for finding in about] == ([] if rule is None else [rule, rule])
            assert len(found.files) == 3
            assert all('"m.example.net"' in finding.fix for finding in about)


def test_a_pattern_for_another_part_of_the_mirror_does_not_count(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("PATTERNS", '"m.example.net/other"'))
    root = hosts(tmp_path, '[host."https://m.example.net/v2/hub"]\noverride_path = true\n', "_default")
    assert (Severity.WARNING, "mirror-without-credential") in rules(lint_mirrors(lint(config), hosts_dir=str(root)))
    config.write_text(CONFIG.replace("PATTERNS", '"m.example.net/hub/team"'))
    assert "mirror-without-credential" not in str(rules(lint_mirrors(lint(config), hosts_dir=str(root))))
