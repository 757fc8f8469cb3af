"""Where podman and the others ask for an image: short names, the longest prefix, mirrors in order, what is blocked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError, ImageNameError
from ostiary.registry.mirrors import registries_conf
from ostiary.registry.mirrors.plan import PullPlan, RuntimeFamily
from ostiary.registry.mirrors.registries_conf import MOST_DROP_INS, RegistriesConf, drop_in_directories

DIGEST = "sha256:" + "a" * 64
MAN_PAGE = """\
unqualified-search-registries = ["example.com"]

[[registry]]
prefix = "example.com/foo"
insecure = false
blocked = false
location = "internal-registry-for-example.com/bar"

[[registry.mirror]]
location = "example-mirror-0.local/mirror-for-foo"

[[registry.mirror]]
location = "example-mirror-1.local/mirrors/foo"
insecure = true

[[registry]]
location = "registry.com"

[[registry.mirror]]
location = "mirror.registry.com"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registries.conf"


def plan(file: Path, image: str, text: str | None = None) -> PullPlan:
    if text is not None:
        file.write_text(text)
    return RegistriesConf(file).plan(image)


def asked(file: Path, image: str, text: str | None = None) -> list[str]:
    return [endpoint.address for endpoint in plan(file, image, text).asked]


def test_the_example_of_the_manual_page(file: Path) -> None:
    told = plan(file, "example.com/foo/image:latest", MAN_PAGE)
    assert [(each.address, each.is_mirror, each.transport) for each in told.endpoints] == [
        ("example-mirror-0.local/mirror-for-foo/image:latest", True, "https"),
        ("example-mirror-1.local/mirrors/foo/image:latest", True, "https, else http; certificate not verified"),
        ("internal-registry-for-example.com/bar/image:latest", False, "https"),
    ]
    assert told.runtime is RuntimeFamily.CONTAINERS
    assert told.endpoints[0].repository == "example-mirror-0.local/mirror-for-foo/image"
    assert told.endpoints[1].place.line == 12
    assert asked(file, "registry.com/image:latest") == ["mirror.registry.com/image:latest", "registry.com/image:latest"]
    assert asked(file, "other.net/image") == ["other.net/image:latest"]


def test_what_the_kubelet_handed_over_is_for_the_host_of_the_image_alone(file: Path) -> None:
    text = '[[registry]]\nlocation = "a.example.com"\n[[registry.mirror]]\nlocation = "a.example.com/cache"\n'
    text += '[[registry.mirror]]\nlocation = "b.example.com"\n'
    endpoints = plan(file, "a.example.com/app", text).endpoints
    assert [each.gets_kubelet_credential for each in endpoints] == [True, False, True]


@pytest.mark.parametrize(
    ("setting", "mirror_setting", "image", "is_used"),
    [
        ("", "", "a.example.com/app:v1", True),
        ("mirror-by-digest-only = true", "", "a.example.com/app:v1", False),
        ("mirror-by-digest-only = true", "", f"a.example.com/app@{DIGEST}", True),
        ("", 'pull-from-mirror = "digest-only"', "a.example.com/app:v1", False),
        ("", 'pull-from-mirror = "digest-only"', f"a.example.com/app@{DIGEST}", True),
        ("", 'pull-from-mirror = "tag-only"', "a.example.com/app:v1", True),
        ("", 'pull-from-mirror = "tag-only"', f"a.example.com/app@{DIGEST}", False),
        ("", 'pull-from-mirror = "all"', "a.example.com/app:v1", True),
    ],
)
def test_mirrors_are_used_for_tags_or_digests(
    file: Path, setting: str, mirror_setting: str, image: str, is_used: bool
) -> None:
    text = f'[[registry]]\nlocation = "a.example.com"\n{setting}\n'
    text += f'[[registry.mirror]]\nlocation = "m.net"\n{mirror_setting}\n'
    mirror, registry = plan(file, image, text).endpoints
    assert (mirror.skip == "") is is_used
    assert registry.skip == ""


def test_blocked_is_judged_for_the_name_at_the_endpoint(file: Path) -> None:
    blocked = '[[registry]]\nlocation = "a.example.com"\nblocked = true\n[[registry.mirror]]\nlocation = "m.net"\n'
    assert asked(file, "a.example.com/app:v1", blocked) == ["m.net/app:v1"]
    # What is remapped is blocked where it really is, or not at all.
    remapped = '[[registry]]\nprefix = "a.example.com"\nlocation = "b.example.com"\nblocked = true\n'
    assert asked(file, "a.example.com/app:v1", remapped) == ["b.example.com/app:v1"]
    mirror = blocked.replace("blocked = true\n", "") + '[[registry]]\nlocation = "m.net"\nblocked = true\n'
    assert asked(file, "a.example.com/app:v1", mirror) == ["a.example.com/app:v1"]


def test_a_star_applies_settings_without_a_rewrite(file: Path) -> None:
    text = '[[registry]]\nprefix = "*.example.com"\n[[registry.mirror]]\nlocation = "m.net/x"\n'
    assert asked(file, "a.b.example.com/app:v1", text) == ["m.net/x/app:v1", "a.b.example.com/app:v1"]


def test_a_prefix_with_a_tag_matches_nothing(file: Path) -> None:
    text = '[[registry]]\nprefix = "example.com/app:v1"\nlocation = "m.net/app:v1"\n'
    assert asked(file, "example.com/app:v1", text) == ["example.com/app:v1"]


@pytest.mark.parametrize(
    ("prefix", "location", "image"),
    [
        # The port stays behind the location, as with the programs.
        ("example.com", "127.0.0.1:5000", "example.com:5000/app:v1"),
        # That would be an image of Docker Hub.
        ("example.com", "mirror", "example.com/app:v1"),
        ("example.com", "docker.io", "example.com/app:v1"),
    ],
)
def test_a_rewrite_that_is_no_full_name_is_refused(file: Path, prefix: str, location: str, image: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan(file, image, f'[[registry]]\nprefix = "{prefix}"\nlocation = "{location}"\n')
    assert "not the full name" in str(refused.value.cause)


def test_drop_ins_replace_tables_by_prefix_in_the_order_of_their_names(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "registries.conf.d"
    folder.mkdir()
    (folder / "20.conf").write_text('[[registry]]\nprefix = "a.example.com"\nlocation = "second.net"\n')
    (folder / "10.conf").write_text('[[registry]]\nprefix = "a.example.com"\nlocation = "first.net"\n')
    (folder / "30.conf.bak").write_text("no toml")
    (folder / "40.conf").mkdir()
    text = '[[registry]]\nlocation = "a.example.com"\n[[registry.mirror]]\nlocation = "m.net"\n'
    told = plan(file, "a.example.com/app:v1", text)
    assert [each.address for each in told.asked] == ["second.net/app:v1"]
    assert len([warning for warning in told.warnings if "takes the place" in warning.message]) == 2
    (folder / "20.conf").write_text("x = ")
    with pytest.raises(ConfigurationError):
        plan(file, "a.example.com/app:v1")


def test_the_systems_file_has_the_users_drop_ins_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert drop_in_directories("/etc/containers/registries.conf") == [
        "/etc/containers/registries.conf.d",
        "/home/somebody/.config/containers/registries.conf.d",
    ]
    assert drop_in_directories("/x/registries.conf") == ["/x/registries.conf.d"]


def test_the_number_of_drop_ins_is_bounded(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_DROP_INS == 256
    monkeypatch.setattr(registries_conf, "MOST_DROP_INS", 1)
    folder = tmp_path / "registries.conf.d"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.conf").touch()
    with pytest.raises(ConfigurationError, match="cannot be used"):
        plan(file, "a.example.com/app", "")


def test_the_number_of_endpoints_is_bounded(file: Path) -> None:
    text = '[[registry]]\nlocation = "a.net"\n' + "".join(
        f'[[registry.mirror]]\nlocation = "m{n}.net"\n' for n in range(100)
    )
    with pytest.raises(ConfigurationError, match="cannot be used"):
        plan(file, "a.net/app", text)


# --- short names ---


def test_an_alias_stands_for_a_full_name_and_keeps_the_tag(file: Path) -> None:
    text = 'unqualified-search-registries = ["one.net", "two.net"]\n[aliases]\n"app" = "a.example.com/team/app"\n'
    assert asked(file, "app:v1", text) == ["a.example.com/team/app:v1"]
    assert asked(file, f"app@{DIGEST}") == [f"a.example.com/team/app@{DIGEST}"]
    assert asked(file, "team/other:v1") == ["one.net/team/other:v1", "two.net/team/other:v1"]
    assert asked(file, "docker.io/library/app:v1") == ["docker.io/library/app:v1"]
    assert plan(file, "team/other").names == ("one.net/team/other:latest", "two.net/team/other:latest")


def test_an_alias_that_a_drop_in_empties_is_gone(file: Path, tmp_path: Path) -> None:
    (tmp_path / "registries.conf.d").mkdir()
    (tmp_path / "registries.conf.d" / "a.conf").write_text('[aliases]\napp = ""\n')
    text = 'unqualified-search-registries = ["one.net"]\n[aliases]\napp = "a.example.com/app"\n'
    assert asked(file, "app", text) == ["one.net/app:latest"]


@pytest.mark.parametrize(
    "text", ["", 'short-name-mode = "enforcing"\nunqualified-search-registries = ["one.net", "two.net"]\n']
)
def test_a_short_name_that_nobody_resolves_is_refused(file: Path, text: str) -> None:
    with pytest.raises(ImageNameError, match="names no registry"):
        plan(file, "app", text)


def test_with_one_registry_enforcing_needs_no_person(file: Path) -> None:
    text = 'short-name-mode = "enforcing"\nunqualified-search-registries = ["one.net"]\n'
    assert asked(file, "app", text) == ["one.net/app:latest"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[registry]]\n", "neither a location nor a prefix"),
        ('[[registry]]\nprefix = "a.example.com"\n', "it has no location"),
        ('[[registry]]\nlocation = "https://a.example.com"\n', "location has a scheme"),
        ('[[registry]]\nprefix = "*.example.com/foo"\nlocation = "m.net"\n', "a prefix with a star is only a host"),
        ('[[registry]]\nlocation = "a.net"\npull-from-mirror = "all"\n', "pull-from-mirror is for mirrors"),
        ('[[registry]]\nlocation = "a.net"\n[[registry.mirror]]\n', "the mirror has no location"),
        (
            '[[registry]]\nlocation = "a.net"\n[[registry.mirror]]\nlocation = "m.net"\npull-from-mirror = "x"\n',
            "unknown pull-from-mirror x",
        ),
        (
            '[[registry]]\nlocation = "a.net"\nmirror-by-digest-only = true\n[[registry.mirror]]\n'
            'location = "m.net"\npull-from-mirror = "all"\n',
            "cannot be combined with mirror-by-digest-only",
        ),
        (
            '[[registry]]\nlocation = "a.net"\nblocked = true\n[[registry]]\nprefix = "b.net"\nlocation = "a.net"\n',
            "with different values of insecure or blocked",
        ),
        ('short-name-mode = "x"\n', "unknown short-name-mode x"),
        ('[aliases]\n"a.net/app" = "b.net/app"\n', "is no short name"),
        ('[aliases]\napp = "library/app"\n', "does not stand for a full name"),
        ('[aliases]\napp = "b.net/app:v1"\n', "does not stand for a full name"),
        ('[registries.search]\nregistries = ["a.net"]\n[[registry]]\nlocation = "b.net"\n', "cannot be mixed"),
        ('[[registry]]\nlocation = "a.net"\ninsecure = "yes"\n', "insecure is not true or false"),
    ],
)
def test_what_makes_the_programs_refuse_every_pull_is_an_error(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan(file, "a.net/app", text)
    assert message in str(refused.value.cause)
    assert refused.value.code == "mirrors-invalid"


def test_a_file_that_is_not_there_was_asked_for_in_vain(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        plan(file, "a.net/app")


def test_of_a_prefix_that_stands_there_twice_the_first_counts(file: Path) -> None:
    text = '[[registry]]\nprefix = "a.net"\nlocation = "b.net"\n[[registry]]\nprefix = "a.net"\nlocation = "c.net"\n'
    told = plan(file, "a.net/app:v1", text)
    assert [each.address for each in told.asked] == ["b.net/app:v1"]
    assert "is there already" in told.warnings[0].message


def test_version_1_blocks_and_searches(file: Path) -> None:
    text = '[registries.search]\nregistries = ["one.net"]\n[registries.block]\nregistries = ["bad.net"]\n'
    text += '[registries.insecure]\nregistries = ["http.net"]\n'
    assert asked(file, "app", text) == ["one.net/app:latest"]
    assert plan(file, "bad.net/app").asked == ()
    assert "not verified" in plan(file, "http.net/app").endpoints[0].transport
