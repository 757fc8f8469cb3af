"""Which files are the kubeconfig, and what they say together."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.kubeconfig import Kubeconfig, load, loads, merge

NAMES = st.sampled_from(["a", "b", "c", "d"])


def listed(*paths: str | Path) -> dict[str, str]:
    return {"KUBECONFIG": os.pathsep.join(str(path) for path in paths)}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def with_cluster(name: str, server: str) -> str:
    return f"clusters: [{{name: {name}, cluster: {{server: {server}}}}}]\n"


def error_of(*paths: str | Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(environ=listed(*paths))
    return caught.value


# --- which files ---


def test_without_anything_said_it_is_the_one_at_home(tmp_path: Path) -> None:
    path = written(tmp_path / ".kube" / "config", "current-context: home")
    assert load(environ={}, home=tmp_path).current_context == "home"
    assert load(environ={"HOME": str(tmp_path)}).files == (str(path),)
    assert load(environ={"HOME": str(tmp_path), "KUBECONFIG": ""}).current_context == "home"


def test_the_environment_of_the_process_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "a", "current-context: a")))
    assert load().current_context == "a"


def test_no_file_at_home_is_an_empty_kubeconfig(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(environ={}, home=tmp_path)
    assert config == Kubeconfig(missing_files=(str(tmp_path / ".kube" / "config"),))
    assert caplog.records == []


def test_the_old_file_at_home_is_not_taken_over(tmp_path: Path) -> None:
    written(tmp_path / ".kube" / ".kubeconfig", "current-context: old")
    assert load(environ={}, home=tmp_path).current_context == ""
    assert not (tmp_path / ".kube" / "config").exists()


def test_an_explicit_path_is_the_only_file(tmp_path: Path) -> None:
    explicit = written(tmp_path / "explicit", "current-context: explicit")
    other = written(tmp_path / "other", with_cluster("a", "https://a"))
    config = load(explicit, environ=listed(other), home=tmp_path)
    assert (config.current_context, config.clusters, config.files) == ("explicit", {}, (str(explicit),))


def test_an_explicit_path_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file") as caught:
        load(tmp_path / "none", environ={})
    assert caught.value.code == "config-unreadable"
    assert str(tmp_path / "none") in str(caught.value)


def test_a_list_with_gaps_and_repetitions_is_read_once_each(tmp_path: Path) -> None:
    """TestDeduplicate."""
    a, b = written(tmp_path / "a", "current-context: a"), written(tmp_path / "b", "current-context: b")
    assert load(environ=listed("", a, b, a, "", b)).files == (str(a), str(b))


def test_a_tilde_in_the_list_is_a_file_name_as_any(tmp_path: Path) -> None:
    written(tmp_path / "config", "current-context: a")
    config = load(environ={**listed("~/config"), "HOME": str(tmp_path)})
    assert config.missing_files == ("~/config",)


def test_missing_files_of_a_list_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TestToleratingMissingFiles."""
    there = written(tmp_path / "there", "current-context: a")
    config = load(environ=listed(tmp_path / "none", there))
    assert config.current_context == "a"
    assert config.missing_files == (str(tmp_path / "none"),)
    assert caplog.records == []


def test_a_list_of_which_nothing_exists_is_worth_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TestWarningMissingFiles."""
    with caplog.at_level(logging.WARNING):
        config = load(environ=listed(tmp_path / "none", tmp_path / "neither"))
    assert config.files == ()
    (record,) = caplog.records
    assert str(tmp_path / "none") in record.getMessage()


def test_a_dangling_link_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert load(environ=listed(tmp_path / "link")).missing_files == (str(tmp_path / "link"),)


# --- files that cannot be used ---


def test_a_broken_file_spoils_the_load_though_others_are_fine(tmp_path: Path) -> None:
    """TestErrorReadingFile."""
    fine, broken = written(tmp_path / "fine", "current-context: a"), written(tmp_path / "broken", "bogus value")
    error = error_of(fine, broken)
    (problem,) = error.problems
    assert problem.place.file == str(broken)
    assert "expected a mapping" in str(error)


def test_a_directory_is_no_kubeconfig(tmp_path: Path) -> None:
    """TestErrorReadingNonFile."""
    error = error_of(written(tmp_path / "fine", "{}"), tmp_path)
    assert error.code == "config-unreadable"
    assert error.problems[0].place.file == str(tmp_path)
    assert "Is a directory" in str(error)


def test_the_mistakes_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    error = error_of(
        written(tmp_path / "a", "clusters: [{name: 5}]"),
        written(tmp_path / "b", "a: [\n"),
        tmp_path,
        written(tmp_path / "c", "kind: Pod\ncurrent-context: []\n"),
    )
    names = [Path(problem.place.file or "").name for problem in error.problems]
    assert names == ["a", "b", tmp_path.name, "c", "c"]


def test_a_pipe_can_be_a_kubeconfig() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"current-context: piped\n")
        os.close(writer)
        assert load(f"/dev/fd/{reader}", environ={}).current_context == "piped"
    finally:
        os.close(reader)


# --- merging ---


def test_of_entries_with_one_name_the_first_counts_whole(tmp_path: Path) -> None:
    first = written(tmp_path / "1", "clusters: [{name: a, cluster: {server: https://first}}]")
    second = written(tmp_path / "2", "clusters: [{name: a, cluster: {server: https://second, tls-server-name: x}}]")
    cluster = load(environ=listed(first, second)).clusters["a"]
    assert (cluster.server, cluster.tls_server_name, cluster.place.file) == ("https://first", "", str(first))


def test_the_first_current_context_counts(tmp_path: Path) -> None:
    """TestConflictingCurrentContext."""
    first, second = written(tmp_path / "1", "current-context: a"), written(tmp_path / "2", "current-context: b")
    config = load(environ=listed(first, second))
    assert config.current_context == "a"
    assert config.current_context_place.file == str(first)


def test_an_empty_current_context_hides_no_later_one(tmp_path: Path) -> None:
    first, second = written(tmp_path / "1", 'current-context: ""'), written(tmp_path / "2", "current-context: b")
    config = load(environ=listed(first, second))
    assert config.current_context == "b"
    assert config.current_context_place.file == str(second)


def test_unknown_fields_of_all_files_are_listed(tmp_path: Path) -> None:
    config = load(environ=listed(written(tmp_path / "1", "x: 1"), written(tmp_path / "2", "z: 1")))
    assert [(place.file, place.path) for place in config.unknown_fields] == [
        (str(tmp_path / "1"), "x"),
        (str(tmp_path / "2"), "z"),
    ]


FILES = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b"]), st.dictionaries(NAMES, st.text("xyz", min_size=1, max_size=5), max_size=4)
    ),
    max_size=5,
)


@given(FILES)
@settings(max_examples=50, deadline=None)
def test_whatever_the_files_the_first_one_with_a_name_wins(files: Sequence[tuple[str, dict[str, str]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for index, (current, servers) in enumerate(files):
            document = {
                "current-context": current,
                "clusters": [{"name": name, "cluster": {"server": server}} for name, server in servers.items()],
                "users": [{"name": name, "user": {"username": server}} for name, server in servers.items()],
                "contexts": [{"name": name, "context": {"namespace": server}} for name, server in servers.items()],
            }
            paths.append(written(Path(directory, str(index)), json.dumps(document)))
        config = load(environ=listed(*paths), home=Path(directory, "nobody"))
    expected = {name: server for _, servers in reversed(files) for name, server in servers.items()}
    assert {name: cluster.server for name, cluster in config.clusters.items()} == expected
    assert {name: user.username for name, user in config.users.items()} == expected
    assert {name: context.namespace for name, context in config.contexts.items()} == expected
    assert config.current_context == next((current for current, _ in files if current), "")


@given(FILES)
@settings(max_examples=50, deadline=None)
def test_it_does_not_matter_in_which_steps_files_are_merged(files: Sequence[tuple[str, dict[str, str]]]) -> None:
    configs = [
        loads(json.dumps({"current-context": current, "users": [{"name": name} for name in names]}), name=str(index))
        for index, (current, names) in enumerate(files)
    ]
    assert merge([merge(configs[:2]), merge(configs[2:])]) == merge(configs)


# --- relative paths ---


def test_a_command_with_a_slash_is_relative_to_its_kubeconfig(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    """TestResolveRelativePaths: relative-cmd, absolute-cmd, PATH-cmd."""
    cases = [
        ("./p", "{}/p"),
        ("../bin/p", "{}/../bin/p"),
        ("bin/p", "{}/bin/p"),
        ("/opt/../p", "/opt/../p"),
        ("p", "p"),
        ("", ""),
    ]
    for command, resolved in cases:
        with subtests.test(command=command, resolved=resolved):
            tmp_path = tmp_path_factory.mktemp("case")
            folder = tmp_path / "configs"
            text = json.dumps({"users": [{"name": "dev", "user": {"exec": {"command": command}}}]})
            found = load(written(folder / "config", text), environ={}).users["dev"].exec
            assert found is not None
            expected = resolved.format(folder)
            assert found.command == (os.path.normpath(expected) if "{}" in resolved else expected)


def test_files_are_relative_to_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    """TestResolveRelativePaths."""
    names = {"client-certificate": "c.crt", "client-key": "../c.key", "tokenFile": "/abs/token"}
    one = written(tmp_path / "one" / "config", json.dumps({"users": [{"name": "dev", "user": names}]}))
    authority = {"certificate-authority": "ca/ca.crt"}
    two = written(tmp_path / "two" / "config", json.dumps({"clusters": [{"name": "a", "cluster": authority}]}))
    config = load(environ=listed(one, two))
    user = config.users["dev"]
    assert user.client_certificate == str(tmp_path / "one" / "c.crt")
    assert user.client_key == str(tmp_path / "c.key")
    assert user.token_file == "/abs/token"
    assert config.clusters["a"].certificate_authority == str(tmp_path / "two" / "ca" / "ca.crt")


def test_a_kubeconfig_with_a_relative_name_gives_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "config", "users: [{name: dev, user: {tokenFile: token, exec: {command: ./p}}}]")
    monkeypatch.chdir(tmp_path)
    user = load("config", environ={}).users["dev"]
    assert user.token_file == str(tmp_path / "token")
    assert user.exec is not None
    assert user.exec.command == str(tmp_path / "p")
