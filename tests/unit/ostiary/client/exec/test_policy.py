"""The plugin policy: what may run, what is executed then, and that every doubt is a refusal."""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.client.exec.kuberc import from_kuberc
from ostiary.client.exec.policy import (
    AllowAll,
    Allowlist,
    Confirm,
    DenyAll,
    Pinned,
    Plan,
    PluginPolicy,
    Trusted,
    policy_of,
)
from ostiary.core.process import find_executable
from ostiary.errors import ConfigurationError, PluginRefused
from ostiary.model import Place

PLACE = Place(None, "users[0].user.exec.command", 7)
unhurried = settings(deadline=None)
IS_ROOT = os.geteuid() == 0


def plan_of(command: str, **parts: object) -> Plan:
    return Plan(command, find_executable(command), place=PLACE, **parts)  # type: ignore[arg-type]


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))
    return place


# --- the kinds of policy ---

KINDS = ("", "AllowAll", "DenyAll", "Allowlist", "Nonsense")
LISTS = (None, 0, 1, 3)
MATRIX = list(itertools.product((True, False), (True, False), (True, False), (True, False), LISTS, KINDS))


def spelled(folder: Path, *, exists: bool, absolute: bool) -> str:
    name = "present" if exists else "absent"
    return str(folder / name) if absolute else name


def decided(kind: str, entries: list[str] | None, command: str) -> str | type[Exception]:
    """What is executed, or the class of the error."""
    try:
        return policy_of(kind, entries).check(plan_of(command))
    except (ConfigurationError, PluginRefused) as error:
        return type(error)


def test_every_combination_of_policy_list_and_spelling_is_decided_as_kubectl_decides(folder: Path) -> None:
    program(folder / "present")
    wrong = []
    for plugin_exists, entry_exists, plugin_absolute, entry_absolute, length, kind in MATRIX:
        command = spelled(folder, exists=plugin_exists, absolute=plugin_absolute)
        entry = spelled(folder, exists=entry_exists, absolute=entry_absolute)
        entries = None if length is None else ["other", "/opt/other", entry][3 - length :]
        same_program = plugin_exists == entry_exists
        same_spelling = same_program and plugin_absolute == entry_absolute
        # What does not exist cannot be found under its other spelling.
        is_listed = same_spelling or (same_program and plugin_exists)

        expected: str | type[Exception]
        if kind == "Nonsense" or (kind == "Allowlist") != bool(entries) or (kind != "Allowlist" and entries == []):
            expected = ConfigurationError
        elif kind in ("", "AllowAll") or (kind == "Allowlist" and is_listed):
            found = plugin_absolute or plugin_exists
            expected = str(folder / Path(command).name) if found else command
        else:
            expected = PluginRefused
        if (actual := decided(kind, entries, command)) != expected:
            wrong.append((kind, entries, command, actual, expected))
    assert not wrong, "\n".join(map(str, wrong))


def test_the_matrix_is_as_large_as_that_of_client_go() -> None:
    assert len(MATRIX) == 320


def test_a_refusal_tells_the_command_the_cause_and_the_place() -> None:
    with pytest.raises(PluginRefused) as caught:
        DenyAll().check(plan_of("acme-login"))
    assert "acme-login" in caught.value.summary
    assert caught.value.cause is not None
    assert "DenyAll" in caught.value.cause
    assert caught.value.where == PLACE
    assert caught.value.hint
    assert caught.value.code == "exec-plugin-denied"


def test_a_command_cannot_put_control_characters_into_the_refusal() -> None:
    for policy in (DenyAll(), Allowlist(["acme-login"])):
        with pytest.raises(PluginRefused) as caught:
            policy.check(plan_of("/bin/\x1b[2Jevil"))
        assert "\x1b" not in str(caught.value)


def test_a_plan_prints_neither_arguments_nor_info() -> None:
    """E64."""
    plan = plan_of("acme-login", args=("--password", "canary-1"), env_names=("HOME",), info='{"x": "canary-2"}')
    assert "canary" not in repr(plan)
    assert "HOME" in repr(plan)


def test_policies_are_values() -> None:
    assert {AllowAll(), AllowAll()} == {AllowAll()}
    assert Allowlist(["a", "b"]) == Allowlist(("a", "b"))
    assert len({Allowlist(["a"]), Trusted(Allowlist(["a"])), Pinned(AllowAll(), {"a": "0" * 64})}) == 3


# --- Allowlist ---


def test_every_bad_entry_is_reported_and_not_only_the_first() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Allowlist(["good", "", "/usr//bin/p", "./p", "/usr/bin/"])
    assert [problem.place.path for problem in caught.value.problems] == [
        "allowlist[1]",
        "allowlist[2]",
        "allowlist[3]",
        "allowlist[4]",
    ]
    assert caught.value.problems[1].hint == "write '/usr/bin/p'"


@pytest.mark.parametrize("entry", ["//usr/bin/p", "/usr/./bin/p", "/usr/x/../bin/p", "bin//p", "p/"])
def test_an_entry_that_is_not_a_normal_path_is_a_mistake(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="allowlist"):
        Allowlist([entry])


def test_a_command_is_compared_and_executed_in_its_normal_form(folder: Path) -> None:
    path = program(folder / "present")
    messy = f"{folder}/x/..//./present"
    assert Allowlist([str(path)]).check(plan_of(messy)) == str(path)


def test_a_path_does_not_turn_into_a_name_to_be_looked_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(folder / "p")
    program(folder.parent / "here" / "p")
    monkeypatch.chdir(folder.parent / "here")
    for plan in (plan_of("./p"), Plan("./p", str(folder.parent / "here" / "p"))):
        with pytest.raises(PluginRefused):
            Allowlist(["p"]).check(plan)


def test_a_program_found_relative_to_the_current_directory_is_refused() -> None:
    for executable in ("p", "./p", "bin/p"):
        with pytest.raises(PluginRefused):
            Allowlist(["p", "bin/p"]).check(Plan("p", executable))


def test_a_file_of_the_same_name_elsewhere_is_refused(folder: Path) -> None:
    program(folder / "p")
    impostor = program(folder.parent / "other" / "p")
    with pytest.raises(PluginRefused):
        Allowlist(["p"]).check(plan_of(str(impostor)))


def test_the_list_is_judged_again_at_every_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = program(folder / "p"), program(folder.parent / "later" / "p")
    policy = Allowlist([str(first)])
    assert policy.check(plan_of("p")) == str(first)
    monkeypatch.setenv("PATH", f"{second.parent}{os.pathsep}{folder}")
    with pytest.raises(PluginRefused):
        policy.check(plan_of("p"))


NAMES = ("p", "q", "absent")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two directories, the first of them all of PATH, with programs of the same names."""
    base = tmp_path_factory.mktemp("programs")
    for place, name in itertools.product(("one", "two"), ("p", "q")):
        program(base / place / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(base / "one"))
        yield base


steps = st.lists(st.sampled_from(["", ".", "..", "one", "two", *NAMES]), min_size=1, max_size=5).map("/".join)
spellings = st.one_of(st.sampled_from(NAMES), steps, st.text(max_size=5), steps.map(lambda rest: "@/" + rest))


def go_clean(path: str) -> str:
    cleaned = posixpath.normpath(path)
    return "/" + cleaned.lstrip("/") if cleaned.startswith("/") else cleaned


@unhurried
@given(command=spellings, entries=st.lists(spellings, min_size=1, max_size=4))
def test_only_a_listed_program_is_ever_executed(root: Path, command: str, entries: list[str]) -> None:
    """E61."""
    command = command.replace("@", str(root))
    entries = [go_clean(entry.replace("@", str(root))) for entry in entries]
    try:
        path = Allowlist(entries).check(plan_of(command))
    except (PluginRefused, ValueError):
        return
    cleaned = go_clean(command)
    assert path in (cleaned, find_executable(cleaned))
    named = {*entries, *(find_executable(entry) for entry in entries)}
    assert path in named


# --- Pinned ---


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_pinned_program_runs_while_its_content_is_the_pinned_one(folder: Path) -> None:
    path = program(folder / "p")
    for key, digest in (("p", digest_of(path)), (str(path), digest_of(path).upper())):
        policy = Pinned(AllowAll(), {key: digest})
        assert policy.check(plan_of("p")) == str(path)
    path.write_text("#!/bin/sh\necho changed\n")
    with pytest.raises(PluginRefused, match="not the pinned one"):
        policy.check(plan_of("p"))


def test_a_command_without_a_pin_is_refused(folder: Path) -> None:
    program(folder / "p")
    with pytest.raises(PluginRefused, match="no pinned SHA-256"):
        Pinned(AllowAll(), {"q": "0" * 64}).check(plan_of("p"))


def test_two_pins_for_one_program_must_both_hold(folder: Path) -> None:
    path = program(folder / "p")
    with pytest.raises(PluginRefused):
        Pinned(AllowAll(), {"p": digest_of(path), str(path): "0" * 64}).check(plan_of("p"))


def test_every_pin_that_is_no_digest_is_reported() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Pinned(AllowAll(), {"p": "0" * 63, "q": "0" * 64, "r": "z" * 64})
    assert len(caught.value.problems) == 2


def test_a_pin_does_not_override_the_policy_below(folder: Path) -> None:
    path = program(folder / "p")
    with pytest.raises(PluginRefused, match="DenyAll"):
        Pinned(DenyAll(), {"p": digest_of(path)}).check(plan_of("p"))


def test_a_named_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "p", 0o755)
    with pytest.raises(PluginRefused, match="regular file"):
        Pinned(AllowAll(), {str(folder / "p"): "0" * 64}).check(plan_of(str(folder / "p")))


@pytest.mark.parametrize("wrap", [Trusted, lambda policy: Pinned(policy, {"absent": "0" * 64})])
def test_what_is_not_there_cannot_be_examined_and_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wrap: Callable[[PluginPolicy], PluginPolicy]
) -> None:
    # Not on PATH, but in the current directory: that one must not be examined in its stead.
    program(folder.parent / "absent")
    monkeypatch.chdir(folder.parent)
    for command in ("absent", str(folder / "absent")):
        with pytest.raises(PluginRefused, match="not found"):
            wrap(AllowAll()).check(plan_of(command))


# --- Trusted ---


def private(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return private(tmp_path / "home")


def test_a_program_that_only_we_can_change_is_trusted(home: Path) -> None:
    path = program(home / "bin" / "p")
    plan = Plan(str(path), str(path), place=Place(str(program(home / "config"))))
    assert Trusted(AllowAll()).check(plan) == str(path)


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("which", ["bin/p", "bin", "."])
def test_a_program_that_others_can_change_or_replace_is_refused(home: Path, which: str, mode: int) -> None:
    """E63."""
    path = program(home / "bin" / "p")
    (home / which).chmod(mode)
    with pytest.raises(PluginRefused, match="changed by other users") as caught:
        Trusted(AllowAll()).check(plan_of(str(path)))
    assert caught.value.hint == f"chmod go-w {(home / which).resolve()}"


def test_in_a_sticky_directory_others_cannot_replace_what_is_ours(home: Path) -> None:
    path = program(home / "bin" / "p")
    path.parent.chmod(0o1777)
    assert Trusted(AllowAll()).check(plan_of(str(path))) == str(path)
    path.chmod(0o1777)  # On a file the bit protects nothing.
    with pytest.raises(PluginRefused):
        Trusted(AllowAll()).check(plan_of(str(path)))


def test_a_kubeconfig_that_others_can_change_is_refused(home: Path) -> None:
    """E63."""
    path, config = program(home / "p"), program(home / "config")
    config.chmod(0o666)
    with pytest.raises(PluginRefused, match="config"):
        Trusted(AllowAll()).check(Plan(str(path), str(path), place=Place(str(config))))


def test_a_kubeconfig_that_is_gone_is_refused(home: Path) -> None:
    path = program(home / "p")
    with pytest.raises(PluginRefused, match="cannot be examined"):
        Trusted(AllowAll()).check(Plan(str(path), str(path), place=Place(str(home / "gone"))))


def test_a_plan_without_a_file_is_judged_by_its_program_alone(home: Path) -> None:
    path = program(home / "p")
    for place in (None, Place(path="users[0]")):
        assert Trusted(AllowAll()).check(Plan(str(path), str(path), place=place)) == str(path)


def test_a_symbolic_link_is_followed_to_what_others_can_change(home: Path) -> None:
    target = program(home / "open" / "real")
    (home / "link").symlink_to("open/../open/real")
    (home / "outer").symlink_to(home / "link")
    plan = Plan(str(home / "outer"), str(home / "outer"))
    assert Trusted(AllowAll()).check(plan) == str(home / "outer")
    target.parent.chmod(0o777)
    with pytest.raises(PluginRefused, match="open"):
        Trusted(AllowAll()).check(plan)


def test_a_directory_above_is_found_through_a_linked_directory(home: Path) -> None:
    path = program(home / "shared" / "inner" / "p")
    (home / "short").symlink_to(path.parent)
    path.parent.parent.chmod(0o777)
    with pytest.raises(PluginRefused, match="shared"):
        Trusted(AllowAll()).check(plan_of(str(home / "short" / "p")))


def test_links_in_a_circle_are_refused(home: Path) -> None:
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    with pytest.raises(PluginRefused, match="cannot be examined"):
        Trusted(AllowAll()).check(plan_of(str(home / "a")))


@pytest.mark.needs("root")
@pytest.mark.parametrize("which", ["bin/p", "bin", "link"])
def test_what_belongs_to_somebody_else_is_refused(home: Path, which: str) -> None:
    path = program(home / "bin" / "p")
    (home / "link").symlink_to(path)
    os.chown(home / which, 12345, -1, follow_symlinks=False)
    with pytest.raises(PluginRefused, match="12345"):
        Trusted(AllowAll()).check(plan_of(str(home / "link")))


# --- Confirm ---


def test_the_callback_sees_what_would_be_executed(folder: Path) -> None:
    path = program(folder / "p")
    seen: list[Plan] = []

    def agree(plan: Plan) -> bool:
        seen.append(plan)
        return True

    messy = f"{folder}/./p"
    assert Confirm(agree, Allowlist(["p"])).check(plan_of(messy)) == str(path)
    assert (seen[0].command, seen[0].executable, seen[0].place) == (messy, str(path), PLACE)


def test_anything_but_true_is_a_refusal(subtests: pytest.Subtests) -> None:
    for answer in [False, None, 1, "yes", "True", object()]:
        with subtests.test(answer=answer), pytest.raises(PluginRefused, match="permission denied"):
            Confirm(lambda plan, answer=answer: answer).check(plan_of("/bin/sh"))  # type: ignore[misc]


def test_an_exception_of_the_callback_is_a_refusal() -> None:
    def fail(plan: Plan) -> bool:
        raise LookupError("the dialog could not be shown")

    with pytest.raises(PluginRefused) as caught:
        Confirm(fail).check(plan_of("/bin/sh"))
    assert isinstance(caught.value.__cause__, LookupError)


def test_the_callback_may_give_its_own_reason() -> None:
    def refuse(plan: Plan) -> bool:
        raise PluginRefused("uploads may not run commands")

    with pytest.raises(PluginRefused, match="uploads"):
        Confirm(refuse).check(plan_of("/bin/sh"))


def test_nobody_is_asked_about_what_the_policy_below_refuses() -> None:
    def never(plan: Plan) -> bool:
        pytest.fail("asked")

    with pytest.raises(PluginRefused):
        Confirm(never, DenyAll()).check(plan_of("/bin/sh"))


# --- kuberc ---

HEAD = "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n"
ALLOWLIST = HEAD + "credentialPluginPolicy: Allowlist\ncredentialPluginAllowlist:\n"


def kuberc(home: Path, text: str | bytes) -> Path:
    path = home / ".kube" / "kuberc"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(home: Path, **environ: str) -> PluginPolicy:
    return from_kuberc(environ=environ, home=home)


def broken(home: Path, text: str | bytes) -> ConfigurationError:
    path = kuberc(home, text)
    with pytest.raises(ConfigurationError) as caught:
        load(home)
    assert caught.value.code == "kuberc-invalid"
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", AllowAll()),
        ("# nothing yet\n", AllowAll()),
        ("---\n---\n", AllowAll()),
        (HEAD, AllowAll()),
        (HEAD + "credentialPluginPolicy: ''\n", AllowAll()),
        (HEAD + "credentialPluginPolicy: null\ncredentialPluginAllowlist: null\n", AllowAll()),
        (HEAD + "credentialPluginPolicy: AllowAll\n", AllowAll()),
        (HEAD + "credentialPluginPolicy: DenyAll\n", DenyAll()),
        (ALLOWLIST + "- command: a\n- name: /b\n- {name: c, command: c}\n", Allowlist(["a", "/b", "c"])),
        (HEAD + "aliases: []\ndefaults: []\nsomethingNew: 1\ncredentialPluginPolicy: DenyAll\n", DenyAll()),
        (HEAD.replace("beta", "alpha") + "overrides: []\n", AllowAll()),
        ("\ufeff" + HEAD + "credentialPluginPolicy: DenyAll\n", DenyAll()),
    ],
)
def test_the_policy_of_a_kuberc(home: Path, text: str, policy: PluginPolicy) -> None:
    kuberc(home, text)
    assert load(home) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not YAML"),
        ("a: 2001-99-99", "not YAML"),
        ("[" * 5000, "not YAML"),
        (b"\xff\xfe\xff", "not YAML"),
        ("just text", "no Preference"),
        ("- a", "no Preference"),
        (HEAD.replace("v1beta1", "v9") + "credentialPluginPolicy: DenyAll\n", "no Preference"),
        (HEAD.replace("Preference", "Config"), "no Preference"),
        ("kind: Preference\n", "no Preference"),
        (HEAD + "credentialPluginPolicy: Sometimes\n", "unknown plugin policy 'Sometimes'"),
        (HEAD + "credentialPluginPolicy: denyall\n", "unknown plugin policy"),
        (HEAD + "credentialPluginPolicy: 5\n", "must be text"),
        (HEAD + "credentialPluginPolicy: true\n", "must be text"),
        (HEAD + "credentialPluginPolicy: Allowlist\n", "no allowlist"),
        (ALLOWLIST.rstrip("\n") + " []\n", "empty"),
        (ALLOWLIST.rstrip("\n") + " p\n", "must be a list"),
        (ALLOWLIST + "- p\n", "must be an object"),
        (ALLOWLIST + "- command: 5\n", "must be an object"),
        (ALLOWLIST + "- {}\n", "names no command"),
        (ALLOWLIST + "- command: ''\n", "names no command"),
        (ALLOWLIST + "- {command: a, name: b}\n", "differ"),
        (ALLOWLIST + "- {command: a, checksum: b}\n", "unknown field checksum"),
        (ALLOWLIST + "- command: a/../b\n", "not a normal path"),
        (
            ALLOWLIST.replace("Policy: Allowlist", "Policy: DenyAll") + "- command: a\n",
            "the policy is DenyAll",
        ),
        (HEAD + "credentialPluginAllowlist: []\n", "the policy is AllowAll"),
        (HEAD.replace("beta", "alpha") + "credentialPluginPolicy: DenyAll\n", "unknown field in"),
        (HEAD + "credentialPluginPolcy: DenyAll\n", "unknown field"),
        (HEAD + "CredentialPluginPolicy: DenyAll\n", "unknown field"),
    ],
)
def test_a_kuberc_that_cannot_be_used_opens_nothing(home: Path, text: str | bytes, message: str) -> None:
    assert message in str(broken(home, text))


def test_every_mistake_of_a_kuberc_is_listed_with_its_place(home: Path) -> None:
    error = broken(home, ALLOWLIST + "- command: a\n- command: ./b\n- command: ''\n")
    assert [problem.place.path for problem in error.problems] == [
        "credentialPluginAllowlist[1]",
        "credentialPluginAllowlist[2]",
    ]


def test_a_syntax_error_is_told_with_its_line(home: Path) -> None:
    (problem,) = broken(home, HEAD + "x: [\n").problems
    assert problem.place.line == 4


def test_the_first_document_of_a_known_version_wins(home: Path) -> None:
    later = HEAD.replace("v1beta1", "v2") + "credentialPluginPolicy: AllowAll\n"
    mine = HEAD + "credentialPluginPolicy: DenyAll\n"
    kuberc(home, f"{later}---\n---\n{mine}---\n{HEAD}---\n{{ not read any more")
    assert load(home) == DenyAll()


def test_no_default_kuberc_allows_all(home: Path) -> None:
    assert load(home) == AllowAll()


def test_home_comes_from_the_environment_unless_given(home: Path) -> None:
    kuberc(home, HEAD + "credentialPluginPolicy: DenyAll\n")
    assert from_kuberc(environ={"HOME": str(home)}) == DenyAll()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_default_kuberc_that_is_there_and_cannot_be_read_opens_nothing(
    home: Path, make: Callable[[Path], None]
) -> None:
    private(home / ".kube")
    make(home / ".kube" / "kuberc")
    with pytest.raises(ConfigurationError) as caught:
        load(home)
    assert caught.value.code == "kuberc-invalid"


def test_a_default_kuberc_that_cannot_be_looked_for_opens_nothing(home: Path) -> None:
    (home / ".kube").symlink_to(".kube")
    with pytest.raises(ConfigurationError, match="kuberc"):
        load(home)


def test_a_kuberc_that_was_asked_for_must_be_there(home: Path) -> None:
    missing = str(home / "missing")
    with pytest.raises(ConfigurationError):
        load(home, KUBERC=missing)
    with pytest.raises(ConfigurationError):
        from_kuberc(missing, environ={}, home=home)


def test_the_argument_comes_before_the_variable_and_the_variable_before_the_default(home: Path) -> None:
    kuberc(home, HEAD)
    variable, argument = home / "variable", home / "argument"
    variable.write_text(HEAD + "credentialPluginPolicy: DenyAll\n")
    argument.write_text(ALLOWLIST + "- command: p\n")
    assert load(home, KUBERC="") == AllowAll()
    assert load(home, KUBERC=str(variable)) == DenyAll()
    assert from_kuberc(argument, environ={"KUBERC": str(variable)}, home=home) == Allowlist(["p"])


@pytest.mark.parametrize("environ", [{"KUBERC": "off"}, {"KUBECTL_KUBERC": "false"}, {"KUBECTL_KUBERC": "FALSE"}])
def test_kuberc_can_be_switched_off_but_not_while_one_is_asked_for(home: Path, environ: dict[str, str]) -> None:
    path = kuberc(home, HEAD + "credentialPluginPolicy: DenyAll\n")
    assert load(home, **environ) == AllowAll()
    with pytest.raises(ConfigurationError, match="cannot be used"):
        from_kuberc(path, environ=environ, home=home)


@unhurried
@given(text=st.text() | st.binary())
def test_any_content_gives_a_policy_or_a_configuration_error(root: Path, text: str | bytes) -> None:
    path = root / "kuberc"
    path.write_bytes(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    try:
        outcome: object = from_kuberc(path, environ={})
    except ConfigurationError as error:
        outcome = error.code
    assert outcome in (AllowAll(), "kuberc-invalid")
