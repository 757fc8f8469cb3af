"""The policy in files: found, followed while it changes, and never replaced by a broken one."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.core.platform.inotify import Inotify
from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError
from ostiary_gateway.catalog import Context, load
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.providers.rbac import file_follow as follow
from ostiary_gateway.providers.rbac.file_load import Look, ManifestFiles
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.rbac import Manifests
from tests.unit.ostiary_gateway.providers.rbac.policies import HEADER, ask

ROLE = (
    HEADER
    + "kind: ClusterRole\nmetadata: {{name: {0}}}\nrules: [{{verbs: [get], apiGroups: [''], resources: [{0}]}}]\n"
)
BINDING = (
    HEADER
    + "kind: ClusterRoleBinding\nmetadata: {{name: {0}}}\nroleRef: {{kind: ClusterRole, name: {0}}}\n"
    + "subjects: [{{kind: User, name: alice}}]\n"
)


def grant(*resources: str) -> str:
    return "---\n".join(text.format(resource) for resource in resources for text in (ROLE, BINDING))


def may(rbac: RbacAuthorization, *resources: str) -> list[bool]:
    return [rbac.decide(ask("get", resource, "ns1")).allowed for resource in resources]


def test_files_and_directories_are_read_whole(tmp_path: Path) -> None:
    """S13: the provider keeps its policy where it likes, here in files as people have them."""
    deep = tmp_path / "policy" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "policy" / "a.yaml").write_text(grant("a") + "---\napiVersion: v1\nkind: Namespace\n")
    (deep / "b.yml").write_text(grant("b"))
    (deep / "c.json").write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    (deep / "notes.txt").write_text("not a manifest: [")
    (tmp_path / "policy" / "..data").mkdir()
    (tmp_path / "policy" / "..data" / "a.yaml").write_text(grant("a"))
    (tmp_path / "single").write_text(grant("d"))
    rbac = RbacAuthorization([tmp_path / "policy", tmp_path / "single", deep / "b.yml"], watch=False)
    assert may(rbac, "a", "b", "d", "e") == [True, True, True, False]


def test_every_mistake_of_every_file_is_told_at_once(tmp_path: Path) -> None:
    """R12."""
    (tmp_path / "a.yaml").write_text(HEADER + "kind: ClusterRole\n")
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigurationError) as caught:
        RbacAuthorization([tmp_path, tmp_path / "missing.yaml"])
    files = [os.path.basename(problem.place.file or "") for problem in caught.value.problems]
    assert files == ["a.yaml", "b.yaml", "c.yaml", "missing.yaml"]


# --- from the configuration ---


def configured(text: str, directory: Path) -> tuple[RbacAuthorization, list[str]]:
    reading = ConfigReader(parse(text, file="gateway.yaml"))
    made = RbacAuthorization.from_config(reading.root, Context("cluster", directory, FakeClock()))
    assert reading.unknown_fields() == ()
    return made, [str(problem) for problem in reading.problems]


def test_the_settings_are_paths_defaults_and_watch(tmp_path: Path) -> None:
    """S2: the operator chooses it by name, and paths are meant from the file that names them."""
    (tmp_path / "policy.yaml").write_text(grant("pods"))
    assert load("authorization", "rbac") is RbacAuthorization
    made, problems = configured("{paths: [policy.yaml], watch: false}", tmp_path)
    assert problems == []
    assert may(made, "pods") == [True]
    assert made.decide(ask("create", "selfsubjectreviews", group="authentication.k8s.io")).allowed
    bare, _ = configured("{paths: [policy.yaml], watch: false, defaults: false}", tmp_path)
    assert not bare.decide(ask("create", "selfsubjectreviews", group="authentication.k8s.io")).allowed


def test_a_mistake_in_the_policy_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    """R12: and what is built from it allows nothing."""
    (tmp_path / "policy.yaml").write_text(grant("pods") + "---\n" + HEADER + "kind: Roll\n")
    made, problems = configured("paths: [policy.yaml]", tmp_path)
    (problem,) = problems
    assert problem.startswith("gateway.yaml:1, paths: ")
    assert "policy.yaml" in problem
    assert may(made, "pods") == [False]


def test_no_paths_are_a_mistake(tmp_path: Path) -> None:
    _, problems = configured("{}", tmp_path)
    assert problems == ["gateway.yaml:1, paths: rbac needs the files or directories of its policy"]


# --- following the files ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(grant("pods"))
    return path


def test_a_changed_file_comes_into_force_with_a_new_revision(file: Path) -> None:
    """S57: so that whoever cached decisions drops them at once."""
    rbac = RbacAuthorization([file], watch=False)
    before = rbac.revision
    assert not rbac.check_now()
    assert rbac.revision == before
    file.write_text(grant("nodes"))
    assert rbac.check_now()
    assert rbac.revision > before
    assert may(rbac, "pods", "nodes") == [False, True]


def test_new_and_removed_files_of_a_directory_count(file: Path) -> None:
    """S57."""
    rbac = RbacAuthorization([file.parent], watch=False)
    (file.parent / "more.yaml").write_text(grant("nodes"))
    assert rbac.check_now()
    assert may(rbac, "pods", "nodes") == [True, True]
    file.unlink()
    assert rbac.check_now()
    assert may(rbac, "pods", "nodes") == [False, True]


def test_a_comment_raises_no_revision_and_moves_the_places(file: Path) -> None:
    """S57."""
    rbac = RbacAuthorization([file], watch=False)
    before = rbac.revision
    file.write_text("# why alice\n" + grant("pods"))
    assert not rbac.check_now()
    assert rbac.revision == before
    assert "policy.yaml:5, rules[0]" in rbac.explain(ask("get", "pods", "ns1")).closest


def test_a_broken_policy_leaves_the_old_one_in_force_and_is_told_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S57, R12."""
    rbac = RbacAuthorization([file], watch=False)
    before = rbac.revision
    file.write_text(grant("nodes") + "---\n" + HEADER + "kind: Roll\n")
    with caplog.at_level(logging.ERROR, "ostiary.rbac"):
        assert not rbac.check_now()
        assert not rbac.check_now()
    assert len(caplog.records) == 1
    assert [problem.place.path for problem in rbac.problems] == ["kind"]
    assert (rbac.revision, may(rbac, "pods", "nodes")) == (before, [True, False])
    file.unlink()
    assert not rbac.check_now()
    assert may(rbac, "pods") == [True]
    file.write_text(grant("nodes"))
    assert rbac.check_now()
    assert rbac.problems == ()
    assert may(rbac, "pods", "nodes") == [False, True]


def test_files_that_look_the_same_are_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that were written just now are, because they may have been written twice."""
    clock = FakeClock()
    os.utime(file, (clock.now().timestamp() - 60, clock.now().timestamp() - 60))
    rbac = RbacAuthorization([file], watch=False, clock=clock)
    reads: list[str] = []
    read = ManifestFiles.read

    def counted(files: ManifestFiles, look: Look | None = None) -> dict[str, Manifests]:
        reads.append("read")
        return read(files, look)

    monkeypatch.setattr(ManifestFiles, "read", counted)
    assert not rbac.check_now()
    assert reads == []
    os.utime(file, (clock.now().timestamp() - 1, clock.now().timestamp() - 1))
    assert not rbac.check_now()
    assert not rbac.check_now()
    assert reads == ["read", "read"]


def test_a_link_that_is_exchanged_is_a_change(tmp_path: Path) -> None:
    """As a mounted ConfigMap changes."""
    for name, resource in (("one", "pods"), ("two", "nodes")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(grant(resource))
    (tmp_path / "..data").symlink_to("one")
    mounted = tmp_path / "policy"
    mounted.mkdir()
    (mounted / "policy.yaml").symlink_to("../..data/policy.yaml")
    rbac = RbacAuthorization([mounted], watch=False)
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").replace(tmp_path / "..data")
    assert rbac.check_now()
    assert may(rbac, "pods", "nodes") == [False, True]


class InForce(logging.Handler):
    """Waits for the message that a policy is in force."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "is in force" in record.getMessage():
            self.event.set()


@pytest.fixture
def in_force(caplog: pytest.LogCaptureFixture) -> Iterator[threading.Event]:
    handler, logger = InForce(), logging.getLogger("ostiary.rbac")
    caplog.set_level(logging.INFO, "ostiary.rbac")
    logger.addHandler(handler)
    yield handler.event
    logger.removeHandler(handler)


@pytest.mark.parametrize("has_inotify", [True, False])
async def test_the_first_use_begins_to_watch_and_close_ends_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, in_force: threading.Event, has_inotify: bool
) -> None:
    """S57: nothing runs before, so that a worker may be forked from it."""
    monkeypatch.setattr(follow, "POLL_SECONDS", 60.0 if has_inotify else 0.01)
    if not has_inotify:
        monkeypatch.setattr(Inotify, "open", lambda: None)
    threads = set(threading.enumerate())
    rbac = RbacAuthorization([file])
    assert set(threading.enumerate()) <= threads
    assert rbac.revision == 1
    # At one go: it might be looked at while it is written.
    (file.parent / "new").write_text(grant("nodes"))
    (file.parent / "new").replace(file)
    assert await asyncio.to_thread(in_force.wait, 20)
    assert may(rbac, "nodes") == [True]
    await rbac.close()
    await rbac.close()
    started = set(threading.enumerate()) - threads
    assert "ostiary-rbac-watch" not in {thread.name for thread in started}
    assert may(rbac, "nodes") == [True]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is of Linux")
async def test_directories_that_come_and_go_are_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_force: threading.Event
) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 60.0)
    (tmp_path / "policy").mkdir()
    rbac = RbacAuthorization([tmp_path / "policy"])
    assert rbac.revision == 1
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "a.yaml").write_text(grant("pods"))
    (tmp_path / "team").rename(tmp_path / "policy" / "team")
    assert await asyncio.to_thread(in_force.wait, 20)
    in_force.clear()
    (tmp_path / "new").write_text(grant("nodes"))
    (tmp_path / "new").rename(tmp_path / "policy" / "team" / "a.yaml")
    assert await asyncio.to_thread(in_force.wait, 20)
    assert may(rbac, "pods", "nodes") == [False, True]
    in_force.clear()
    (tmp_path / "policy" / "team").rename(tmp_path / "policy" / ".hidden")
    assert await asyncio.to_thread(in_force.wait, 20)
    assert may(rbac, "nodes") == [False]
    await rbac.close()


async def test_a_provider_that_is_not_to_watch_starts_no_thread(file: Path) -> None:
    threads = set(threading.enumerate())
    rbac = RbacAuthorization([file], watch=False)
    assert may(rbac, "pods") == [True]
    assert await rbac.relevant_groups() >= {"system:masters"}
    assert set(threading.enumerate()) <= threads


def test_decisions_while_the_policy_changes_are_of_one_policy_or_the_other(file: Path) -> None:
    """S57, S66: many threads decide while the files are exchanged under them."""
    rbac = RbacAuthorization([file], watch=False)
    wrong: list[list[bool]] = []
    stop = threading.Event()

    def decide() -> None:
        while not stop.is_set():
            before, found, after = rbac.revision, may(rbac, "pods", "nodes"), rbac.revision
            if before == after and found not in ([True, False], [False, True]):
                wrong.append(found)

    threads = [threading.Thread(target=decide) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        file.write_text(grant("nodes" if number % 2 == 0 else "pods"))
        assert rbac.check_now()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert rbac.revision == 11


def test_missing_roles_are_told_once_when_a_policy_comes_into_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R1."""
    (tmp_path / "p.yaml").write_text(BINDING.format("gone"))
    with caplog.at_level(logging.WARNING, "ostiary.rbac"):
        RbacAuthorization([tmp_path], watch=False)
    assert [record.getMessage() for record in caplog.records] == [
        'a role that the RBAC policy binds does not exist: ClusterRole "gone"'
    ]
