"""Where containerd asks for an image: the directory of its registry, the hosts of the file, and last the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError, ImageNameError
from ostiary.registry.mirrors.containerd import (
    CAPABILITIES,
    ContainerdHosts,
    RegistryHost,
    directory_names,
    mirrored_path,
    parse_hosts_file,
)
from ostiary.registry.mirrors.plan import PullEndpoint, PullPlan, RuntimeFamily
from ostiary.registry.mirrors.toml_file import TomlFile

DIGEST = "sha256:" + "a" * 64
CANARY = "c4n4ry-c4n4ry"


def write(root: Path, directory: str, text: str) -> Path:
    folder = root / directory
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text(text)
    return root


def plan(root: Path, image: str = "registry.example.com/team/app:v1") -> PullPlan:
    return ContainerdHosts(root).plan(image)


def asked(root: Path, image: str = "registry.example.com/team/app:v1") -> list[tuple[str, str, bool]]:
    return [(each.address, each.repository, each.is_mirror) for each in plan(root, image).asked]


def only(root: Path, image: str = "registry.example.com/team/app:v1") -> PullEndpoint:
    return plan(root, image).endpoints[0]


def test_hosts_are_asked_in_the_order_of_the_file_and_the_registry_last(tmp_path: Path) -> None:
    write(
        tmp_path,
        "registry.example.com",
        '[host."https://b.example.net"]\n[host."https://b.example.net".header]\nx = "1"\n[host."http://a.example.net:5000"]\n',
    )
    assert asked(tmp_path) == [
        ("https://b.example.net/v2/team/app", "b.example.net/team/app", True),
        ("http://a.example.net:5000/v2/team/app", "a.example.net:5000/team/app", True),
        ("https://registry.example.com/v2/team/app", "registry.example.com/team/app", False),
    ]
    told = plan(tmp_path)
    assert told.runtime is RuntimeFamily.CONTAINERD
    # containerd has one login for a pull, and sends it to whoever asks for one.
    assert all(each.gets_kubelet_credential for each in told.endpoints)
    assert told.endpoints[0].place.line == 1
    assert told.endpoints[1].place.line == 4


def test_a_server_takes_the_place_of_the_registry(tmp_path: Path) -> None:
    write(tmp_path, "registry.example.com", 'server = "https://mirror.example.net"\n[host."https://a.example.net"]\n')
    assert [address for address, _, _ in asked(tmp_path)] == [
        "https://a.example.net/v2/team/app",
        "https://mirror.example.net/v2/team/app",
    ]


def test_without_a_directory_the_registry_itself_is_asked(tmp_path: Path) -> None:
    assert asked(tmp_path, "nginx") == [
        ("https://registry-1.docker.io/v2/library/nginx", "docker.io/library/nginx", False)
    ]
    assert asked(tmp_path, "127.0.0.1:5000/app")[0][0] == "http://127.0.0.1:5000/v2/app"
    assert asked(tmp_path, "localhost:5000/app")[0][0] == "http://localhost:5000/v2/app"


def test_docker_hubs_pull_host_is_no_mirror_of_docker_hub(tmp_path: Path) -> None:
    write(tmp_path, "docker.io", 'server = "https://registry-1.docker.io"\n[host."https://m.example.net"]\n')
    assert asked(tmp_path, "nginx:1") == [
        ("https://m.example.net/v2/library/nginx", "m.example.net/library/nginx", True),
        ("https://registry-1.docker.io/v2/library/nginx", "docker.io/library/nginx", False),
    ]


def test_the_directory_with_underscores_comes_before_the_one_with_a_colon_and_the_default_last(tmp_path: Path) -> None:
    image = "registry.example.com:5000/app"
    for directory, host in (("_default", "d"), ("registry.example.com:5000", "c"), ("registry.example.com_5000_", "u")):
        write(tmp_path, directory, f'[host."https://{host}.example.net"]\n')
    assert only(tmp_path, image).host == "u.example.net"
    (tmp_path / "registry.example.com_5000_").rename(tmp_path / "registry.example.com_5000")
    assert only(tmp_path, image).host == "c.example.net"
    (tmp_path / "registry.example.com:5000").rename(tmp_path / "elsewhere")
    assert only(tmp_path, image).host == "d.example.net"


def test_a_directory_without_a_file_hides_the_default(tmp_path: Path) -> None:
    write(tmp_path, "_default", '[host."https://d.example.net"]\n')
    (tmp_path / "registry.example.com").mkdir()
    assert only(tmp_path).is_mirror is False


def test_an_address_is_read_as_containerd_reads_it(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("m.example.net", "", "https://m.example.net/v2/team/app", "m.example.net/team/app"),
        ("https://m.example.net/", "", "https://m.example.net/v2/team/app", "m.example.net/team/app"),
        ("https://m.example.net/v2", "", "https://m.example.net/v2/team/app", "m.example.net/team/app"),
        ("https://m.example.net/x/", "", "https://m.example.net/x/v2/team/app", "m.example.net/team/app"),
        (
            "https://m.example.net/v2/hub",
            "override_path = true",
            "https://m.example.net/v2/hub/team/app",
            "m.example.net/hub/team/app",
        ),
        (
            "https://m.example.net/api/docker",
            "override_path = true",
            "https://m.example.net/api/docker/team/app",
            "m.example.net/team/app",
        ),
        ("https://m.example.net:443", "", "https://m.example.net:443/v2/team/app", "m.example.net:443/team/app"),
        (f"https://u:{CANARY}@m.example.net", "", "https://m.example.net/v2/team/app", "m.example.net/team/app"),
        # Their names at the host would be names of images of Docker Hub, whose credential is not theirs.
        ("http://mirror", "", "http://mirror/v2/team/app", ""),
        ("https://m.example.net/v2/HUB", "override_path = true", "https://m.example.net/v2/HUB/team/app", ""),
    ]
    for written, settings, address, repository in cases:
        with subtests.test(written=written, settings=settings, address=address, repository=repository):
            tmp_path = tmp_path_factory.mktemp("case")
            write(tmp_path, "registry.example.com", f'[host."{written}"]\n{settings}\n')
            endpoint = only(tmp_path)
            assert (endpoint.address, endpoint.repository) == (address, repository)
            assert CANARY not in repr(plan(tmp_path)) + str(endpoint.place)


@pytest.mark.parametrize(
    ("capabilities", "image", "skip", "note"),
    [
        ('["pull", "resolve"]', "registry.example.com/app:v1", False, False),
        ('["Pull"]', "registry.example.com/app:v1", False, True),
        ('["pull"]', f"registry.example.com/app@{DIGEST}", False, False),
        ('["push", "resolve"]', "registry.example.com/app:v1", True, False),
        ("[]", "registry.example.com/app:v1", False, False),
    ],
)
def test_a_host_is_asked_for_what_it_is_capable_of(
    tmp_path: Path, capabilities: str, image: str, skip: bool, note: bool
) -> None:
    write(tmp_path, "registry.example.com", f'[host."https://m.example.net"]\ncapabilities = {capabilities}\n')
    endpoint = only(tmp_path, image)
    assert (bool(endpoint.skip), bool(endpoint.note)) == (skip, note)


def test_what_containerd_would_pass_over_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ('[host."https://m.example.net"]\ncapabilities = ["pul"]\n', "unknown capability pul"),
        ("server = 1\n", "server is not a string"),
        ("server = \n", "it is not TOML"),
        ('[host."https://"]\n', "the address of a host has no host in it"),
        ('[host."httpd.example.net"]\n', "the address of a host has no host in it"),
        (f'[host."https://u:{CANARY}/1@m.example.net"]\n', "the address of a host has no host in it"),
        ('[host."https://m.example.net:x"]\n', "the address of a host has no host in it"),
        ('[host."https://m.example.net"]\noverride_path = "yes"\n', "override_path is not true or false"),
    ]
    for text, message in cases:
        with subtests.test(text=text, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            write(tmp_path, "registry.example.com", text)
            with pytest.raises(ConfigurationError) as refused:
                plan(tmp_path)
            assert (refused.value.code, refused.value.cause) == ("mirrors-invalid", message)
            assert refused.value.hint
            assert CANARY not in str(refused.value)


def test_a_host_outside_of_a_table_and_an_unknown_key_are_warned_of(tmp_path: Path) -> None:
    write(tmp_path, "b.example.com", 'host = {"https://a.example.net" = {}}\nserver_name = "x"\n')
    told = plan(tmp_path, "b.example.com/app")
    assert [each.host for each in told.asked] == ["b.example.com"]
    assert [warning.message for warning in told.warnings] == [
        "a host that is not a table of its own is not seen by containerd 2",
        "unknown key server_name, which is passed over",
    ]


def test_a_directory_that_is_not_there_and_a_name_that_is_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        plan(tmp_path / "missing")
    with pytest.raises(ImageNameError):
        plan(tmp_path, "https://registry.example.com/app")


def test_the_number_of_hosts_is_bounded(tmp_path: Path) -> None:
    write(tmp_path, "registry.example.com", "".join(f'[host."https://m{n}.example.net"]\n' for n in range(100)))
    with pytest.raises(ConfigurationError, match="cannot be used"):
        plan(tmp_path)


LABEL = st.from_regex(r"[a-z0-9]{1,4}", fullmatch=True)


@given(LABEL, st.integers(1, 65535))
def test_no_two_registries_share_a_directory_besides_the_default(host: str, port: int) -> None:
    with_port, without = directory_names(f"{host}:{port}"), directory_names(host)
    assert set(with_port) & set(without) == {"_default"}
    assert with_port[0] == f"{host}_{port}_"


@given(st.lists(LABEL, max_size=3), st.booleans(), LABEL)
def test_the_image_is_below_whatever_stands_behind_the_version(below: list[str], override: bool, path: str) -> None:
    root = "/v2" + "".join(f"/{label}" for label in below) if override else "/v2"
    file = TomlFile("f", f'[host."https://m.example.net{root}"]\noverride_path = {str(override).lower()}\n'.encode())
    (host,) = parse_hosts_file(file).hosts
    expected = "/".join([*(below if override else []), path])
    assert mirrored_path(host, path) == expected


@given(st.text(alphabet=st.characters(blacklist_characters='"\\\n\r', blacklist_categories=("Cs", "Cc")), max_size=40))
def test_no_address_raises_and_none_shows_a_password(address: str) -> None:
    file = TomlFile("f", f'[host."https://user:{CANARY}@{address}"]\n'.encode())
    parsed = parse_hosts_file(file)
    assert CANARY not in repr(parsed)
    assert len(parsed.hosts) + len(parsed.problems) >= 1
    for host in parsed.hosts:
        assert isinstance(host, RegistryHost)
        assert host.capabilities <= CAPABILITIES
