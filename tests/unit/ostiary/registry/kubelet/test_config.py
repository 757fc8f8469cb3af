"""Which providers there are: files, directories, dialects, strictness and the kubelet's hash."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.model import Place
from ostiary.registry.kubelet.config import hash_of, load, loads
from ostiary.registry.kubelet.document import CONFIG_API_VERSIONS, CONFIG_V1
from ostiary.registry.kubelet.model import ProviderConfig, ProvidersConfig, TokenAttributes
from ostiary.wire.credential_provider import V1, V1ALPHA1, V1BETA1, ProviderDialect

CANARY = "c4n4ry-c4n4ry-c4n4ry"

# The text behind the hash in the kubelet's own test.
SINGLE = """\
---
kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1alpha1
providers:
  - name: test
    matchImages:
    - "registry.io/foobar"
    defaultCacheDuration: 10m
    apiVersion: credentialprovider.kubelet.k8s.io/v1alpha1
    args:
    - --v=5
    env:
    - name: FOO
      value: BAR"""
SINGLE_HASH = "sha256:8a62755289ba50c4ca9495baab69eb861068503f8bd49b853e8ba6cf95c72bb8"

ONE_OF_TWO = """\
---
kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1
providers:
  - name: {name}
    matchImages:
    - "registry.io/{path}"
    defaultCacheDuration: {duration}
    apiVersion: credentialprovider.kubelet.k8s.io/v1"""
FIRST = ONE_OF_TWO.format(name="test1", path="one", duration="10m")
SECOND = ONE_OF_TWO.format(name="test2", path="two", duration="5m")
DIRECTORY_HASH = "sha256:efef09979a19eee4802fe4b7aa46d5122f16687a8419443647182c1920f76ac9"

TEST = ProviderConfig(
    name="test",
    match_images=("registry.io/foobar",),
    default_cache_duration=timedelta(minutes=10),
    api_version=V1ALPHA1,
    args=("--v=5",),
    env=(("FOO", "BAR"),),
)


def document(*providers: dict[str, Any], version: str = CONFIG_V1, **more: Any) -> str:
    return json.dumps({"apiVersion": version, "kind": "CredentialProviderConfig", "providers": providers, **more})


def provider(name: str = "test", **changes: Any) -> dict[str, Any]:
    fields = {
        "name": name,
        "matchImages": ["registry.io"],
        "defaultCacheDuration": "10m",
        "apiVersion": V1,
        **changes,
    }
    return {key: value for key, value in fields.items() if value is not None}


def error_of(source: str | bytes, **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        loads(source, name="config.yaml", **options)
    return caught.value


def write(directory: Path, **files: str) -> Path:
    """Write files into *directory*; a double underscore in a name stands for its dot."""
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def names(config: ProvidersConfig) -> list[str]:
    return [one.name for one in config.providers]


# --- one file: Test_readCredentialProviderConfig ---


def test_one_provider_is_read_and_the_file_hashed_as_the_kubelet_does_it(tmp_path: Path) -> None:
    """I39."""
    path = tmp_path / "config.yaml"
    path.write_text(SINGLE)
    config = load(path)
    assert config == ProvidersConfig((TEST,), SINGLE_HASH, (str(path),))
    assert config.providers[0].place == Place(str(path), "providers[0]", 5)


def test_the_same_in_json_is_the_same_provider_with_another_hash() -> None:
    text = document(
        provider(
            matchImages=["registry.io/foobar"],
            apiVersion=V1ALPHA1,
            args=["--v=5"],
            env=[{"name": "FOO", "value": "BAR"}],
        ),
        version="kubelet.config.k8s.io/v1alpha1",
    )
    config = loads(text)
    assert config.providers == (TEST,)
    assert config.hash != SINGLE_HASH


def test_patterns_that_never_match_are_read_as_the_kubelet_reads_them() -> None:
    """Only what cannot be parsed is refused."""
    patterns = ["registry.io/*", "https://registry.io", "GCR.IO", "*.registry.io", "a*.io:5000/path"]
    assert loads(document(provider(matchImages=patterns))).providers[0].match_images == tuple(patterns)


@pytest.mark.parametrize("version", CONFIG_API_VERSIONS)
def test_several_providers_keep_their_order_in_every_version(version: str) -> None:
    """I39."""
    config = loads(document(provider("b"), provider("a"), provider("c"), version=version))
    assert names(config) == ["b", "a", "c"]


@pytest.mark.parametrize("name", ["config", "config.txt", "config.yaml.bak"])
def test_a_single_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    """I7."""
    (tmp_path / name).write_text(SINGLE)
    assert names(load(tmp_path / name)) == ["test"]


def test_another_kind_or_version_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        (
            "WrongKind",
            "kubelet.config.k8s.io/v1alpha1",
            'no kind "WrongKind" is registered for version "kubelet.config.k8s.io/v1alpha1"',
            "kind",
        ),
        (
            "CredentialProviderConfig",
            "foobar/v1alpha1",
            'no kind "CredentialProviderConfig" is registered for version "foobar/v1alpha1"',
            "apiVersion",
        ),
        (
            "CredentialProviderConfig",
            "kubelet.config.k8s.io/v2",
            'no kind "CredentialProviderConfig" is registered for version "kubelet.config.k8s.io/v2"',
            "apiVersion",
        ),
        (
            "credentialproviderconfig",
            CONFIG_V1,
            f'no kind "credentialproviderconfig" is registered for version "{CONFIG_V1}"',
            "kind",
        ),
        ("", CONFIG_V1, "there is no kind", "kind"),
        ("CredentialProviderConfig", "", "there is no apiVersion", "apiVersion"),
    ]
    for kind, version, message, field in cases:
        with subtests.test(kind=kind, version=version, message=message, field=field):
            error = error_of(f"kind: {kind}\napiVersion: {version}\nproviders: []\nother: 1\n")
            (problem,) = error.problems
            assert problem.message == message
            assert problem.place == Place("config.yaml", field, 1 if field == "kind" else 2)
            assert "kubelet.config.k8s.io/v1" in (problem.hint or "")


@pytest.mark.parametrize("text", ["", "null", "[]", "text", "- a"])
def test_a_file_without_a_mapping_is_refused(text: str) -> None:
    assert error_of(text).code == "config-invalid"


# --- strictness ---


def test_an_unknown_field_is_refused_with_its_path_and_line() -> None:
    error = error_of(SINGLE.replace("    args:", "    unknownField: 1\n    args:"))
    (problem,) = error.problems
    assert problem.message == "strict decoding error: unknown field"
    assert problem.place == Place("config.yaml", "providers[0].unknownField", 10)
    assert problem.hint


@pytest.mark.parametrize("version", ["kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1beta1"])
def test_token_attributes_exist_only_in_v1(version: str) -> None:
    error = error_of(document(provider(tokenAttributes={}), version=version))
    (problem,) = error.problems
    assert problem.message == "strict decoding error: unknown field"
    assert problem.place.path == "providers[0].tokenAttributes"
    assert CONFIG_V1 in (problem.hint or "")


def test_a_repeated_field_is_refused_with_its_path_and_line() -> None:
    for again in ("name: again", "matchImages: [registry.io]"):
        error = error_of(SINGLE.replace("    args:", f"    {again}\n    args:"))
        (problem,) = error.problems
        assert problem.message == "strict decoding error: duplicate field"
        assert problem.place == Place("config.yaml", f"providers[0].{again.partition(':')[0]}", 10)
        assert problem.hint == "keep one of the two"


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("MatchImages", "matchImages"),
        ("defaultCacheduration", "defaultCacheDuration"),
        ("imageMatchers", "matchImages"),
        ("extraArgs", "env"),
        ("somethingElse", "remove it"),
    ],
)
def test_a_field_of_another_spelling_is_unknown_and_the_hint_names_the_right_one(field: str, hint: str) -> None:
    """Field names are case-sensitive."""
    (problem,) = error_of(document({**provider(), field: []})).problems
    assert problem.place.path == f"providers[0].{field}"
    assert hint in (problem.hint or "")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("providers[0].env[0].more", {"env": [{"name": "A", "value": "B", "more": 1}]}),
        ("providers[0].tokenAttributes.more", {"tokenAttributes": {"more": 1}}),
    ],
)
def test_decoding_is_strict_at_every_depth(path: str, change: dict[str, Any]) -> None:
    error = error_of(document(provider(**change)))
    assert path in [problem.place.path for problem in error.problems]


def test_a_value_of_another_type_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name": 5}, "providers[0].name"),
        ({"matchImages": "registry.io"}, "providers[0].matchImages"),
        ({"matchImages": [5]}, "providers[0].matchImages[0]"),
        ({"args": [True]}, "providers[0].args[0]"),
        ({"env": {"A": "B"}}, "providers[0].env"),
        ({"env": [{"name": "A", "value": 5}]}, "providers[0].env[0].value"),
        ({"tokenAttributes": []}, "providers[0].tokenAttributes"),
        ({"tokenAttributes": {"requireServiceAccount": "yes"}}, "providers[0].tokenAttributes.requireServiceAccount"),
    ]
    for change, path in cases:
        with subtests.test(change=change, path=path):
            assert path in [problem.place.path for problem in error_of(document(provider(**change))).problems]


def test_only_the_first_document_is_read_and_the_others_are_warned_of() -> None:
    """The kubelet drops them silently."""
    config = loads(f"{FIRST}\n{SECOND}", name="config.yaml")
    assert names(config) == ["test1"]
    (warning,) = config.warnings
    assert warning.place == Place("config.yaml", "", 11)
    assert "only the first YAML document is read" in warning.message
    assert warning.hint


def test_a_broken_second_document_is_only_warned_of() -> None:
    config = loads(f"{FIRST}\n---\na: [*x]\n")
    assert names(config) == ["test1"]
    assert len(config.warnings) == 1


def test_one_document_between_markers_is_no_reason_to_warn() -> None:
    assert loads(f"{FIRST}\n...\n").warnings == ()


# --- YAML traps ---


def test_an_unquoted_star_is_explained() -> None:
    """The proposal's own example is no YAML. I27."""
    text = (
        "kind: credentialprovider\napiVersion: v1alpha1\nproviders:\n-\n  name: ecr-creds\n"
        "  imageMatchers:\n  - *.dkr.ecr.*.amazonaws.com\n  - *.dkr.ecr.*.amazonaws.com.cn\n"
    )
    error = error_of(text)
    (problem,) = error.problems
    assert error.code == "config-syntax"
    assert (problem.place.file, problem.place.line) == ("config.yaml", 7)
    assert "in quotes" in (problem.hint or "")
    assert '"*.example.com"' in (problem.hint or "")


def test_an_unquoted_star_before_a_word_is_explained_too() -> None:
    error = error_of(SINGLE.replace('"registry.io/foobar"', "*registry"))
    (problem,) = error.problems
    assert problem.place == Place("config.yaml", "providers[0].matchImages[0]", 7)
    assert "in quotes" in (problem.hint or "")


def test_what_is_no_duration_is_refused_with_the_way_to_write_it(subtests: pytest.Subtests) -> None:
    """Go strings only."""
    cases = [
        ("5", '"10m"'),
        ("0", '"0s"'),
        ("1.5", '"10m"'),
        ("true", '"10m"'),
        ("[10m]", '"10m"'),
        ('"5"', "5m is five minutes"),
        ("1d", "24h"),
        ('""', "10m"),
        ('" 1m"', "10m"),
        ("1h1", "unit"),
    ]
    for written, hint in cases:
        with subtests.test(written=written, hint=hint):
            (problem,) = error_of(SINGLE.replace("10m", written)).problems
            assert problem.place == Place("config.yaml", "providers[0].defaultCacheDuration", 8)
            assert hint in (problem.hint or "")


def test_go_durations_are_taken(subtests: pytest.Subtests) -> None:
    for written in ['"0"', "0s", "10m", "1h30m", "1.5h", "300ms", "1us", "+5m", ".5s"]:
        with subtests.test(written=written):
            assert loads(SINGLE.replace("10m", written)).providers[0].default_cache_duration >= timedelta(0)


# --- directories ---


def test_a_directory_is_read_in_the_order_of_its_file_names(tmp_path: Path) -> None:
    write(tmp_path, b__yaml=SECOND, a__yaml=FIRST)
    config = load(tmp_path)
    assert names(config) == ["test1", "test2"]
    assert config.hash == DIRECTORY_HASH
    assert config.files == (str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert config.providers[1].place.file == str(tmp_path / "b.yaml")


def test_every_file_may_have_a_version_of_its_own_and_be_json(tmp_path: Path) -> None:
    """I39."""
    write(
        tmp_path,
        a__yaml=document(provider("beta", apiVersion=V1BETA1), version="kubelet.config.k8s.io/v1beta1"),
        b__yml=FIRST,
        c__yaml=json.dumps(json.loads(document(provider("json"))), indent=1),
    )
    assert names(load(tmp_path)) == ["beta", "test1", "json"]


def test_files_of_other_names_and_directories_below_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, a__yaml=FIRST, b__txt="no", c__json=document(provider("json")), d__YAML="no", yaml="no")
    (tmp_path / "e.yaml").mkdir()
    write(tmp_path / "e.yaml", f__yaml=SECOND)
    assert names(load(tmp_path)) == ["test1", "json"]


def test_links_to_files_are_read_as_in_a_mounted_config_map(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", a__yaml=FIRST)
    (tmp_path / "a.yaml").symlink_to(tmp_path / "data" / "a.yaml")
    assert names(load(tmp_path)) == ["test1"]


@pytest.mark.parametrize("files", [{}, {"a__txt": "x", "b__md": "y"}])
def test_a_directory_without_configurations_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, **files)
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path)
    assert f'no configuration files found in directory "{tmp_path}"' in str(caught.value)
    assert caught.value.code == "config-not-found"
    assert caught.value.hint


def test_one_wrong_file_spoils_the_whole_directory(tmp_path: Path) -> None:
    write(tmp_path, a__yaml=FIRST, b__yaml=SECOND.replace("CredentialProviderConfig", "WrongKind"))
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path)
    (problem,) = caught.value.problems
    assert problem.place.file == str(tmp_path / "b.yaml")


def test_the_mistakes_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        a__yaml=FIRST.replace("10m", "5"),
        b__yaml="a: [",
        c__yaml=SECOND.replace("test2", "a/b"),
    )
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path)
    assert [Path(str(problem.place.file)).name for problem in caught.value.problems] == ["a.yaml", "b.yaml", "c.yaml"]
    assert caught.value.code == "config-syntax"


@pytest.mark.parametrize("split", [True, False])
def test_a_name_that_stands_twice_is_refused(split: bool, tmp_path: Path) -> None:
    """In one file or in two."""
    if split:
        write(tmp_path, a__yaml=FIRST, b__yaml=SECOND.replace("test2", "test1"))
    else:
        write(tmp_path, a__json=document(provider("test1"), provider("test1")))
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path)
    (problem,) = caught.value.problems
    assert problem.message == 'duplicate provider name "test1" found in configuration file(s)'
    assert problem.place.path == ("providers[0].name" if split else "providers[1].name")
    assert "providers[0]" in (problem.hint or "")


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        load("")
    assert caught.value.cause == "credential provider config path is empty"


@pytest.mark.parametrize("path", ["missing.yaml", "missing/config.yaml", "nul\0"])
def test_a_path_that_cannot_be_reached_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(f"{tmp_path}/{path}")
    assert "unable to access path" in (caught.value.cause or "")
    assert caught.value.code == "config-unreadable"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to(tmp_path)
    (tmp_path / "b.yaml").symlink_to(tmp_path / "missing")
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path)
    assert [problem.place.file for problem in caught.value.problems] == [
        str(tmp_path / "a.yaml"),
        str(tmp_path / "b.yaml"),
    ]
    assert caught.value.code == "config-unreadable"


def test_loading_twice_in_one_process_is_allowed(tmp_path: Path) -> None:
    """The kubelet would panic."""
    path = write(tmp_path, a__yaml=FIRST)
    assert load(path) == load(path)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(st.binary(max_size=20), max_size=4))
def test_two_configurations_have_one_hash_only_if_they_are_the_same_files(one: list[bytes], two: list[bytes]) -> None:
    assert (hash_of(one) == hash_of(two)) == (one == two)


def test_providers_are_equal_wherever_they_stand() -> None:
    assert loads(FIRST).providers == loads("\n\n" + FIRST, name="other.yaml").providers


def test_arguments_and_environment_are_not_shown() -> None:
    config = loads(document(provider(args=[CANARY], env=[{"name": "TOKEN", "value": CANARY}])))
    assert CANARY not in repr(config)


def test_an_error_does_not_show_the_environment() -> None:
    env = [{"name": "TOKEN", "value": CANARY}, {"name": "TOKEN", "value": [CANARY]}]
    assert CANARY not in str(error_of(document(provider(env=env, name="a/b", args=[{CANARY: CANARY}]))))


# --- the proposal's dialect ---

PROPOSED = """\
kind: {kind}
apiVersion: {version}
providers:
-
  name: ecr-creds
  imageMatchers:
  - "*.dkr.ecr.*.amazonaws.com"
  - "*.dkr.ecr.*.amazonaws.com.cn"
  extraArgs: {extra}
"""


@pytest.mark.parametrize("kind", ["RegistryCredentialConfig", "credentialprovider"])
@pytest.mark.parametrize("version", ["v1alpha1", "kubelet.config.k8s.io/v1alpha1"])
def test_the_proposals_dialect_is_read(kind: str, version: str) -> None:
    """Both spellings of the kind, and the example's map of extraArgs in upper case. I7, I18, I39."""
    config = loads(PROPOSED.format(kind=kind, version=version, extra="{region: us-west-2}"))
    assert config.providers == (
        ProviderConfig(
            name="ecr-creds",
            match_images=("*.dkr.ecr.*.amazonaws.com", "*.dkr.ecr.*.amazonaws.com.cn"),
            default_cache_duration=timedelta(0),
            api_version=V1ALPHA1,
            args=("get-credentials",),
            env=(("REGION", "us-west-2"),),
            dialect=ProviderDialect.PROPOSAL,
        ),
    )


@pytest.mark.parametrize(
    ("extra", "env"),
    [
        ("[{name: region, value: us-west-2}]", (("region", "us-west-2"),)),
        ("{region: us-west-2, Role_arn: x}", (("REGION", "us-west-2"), ("ROLE_ARN", "x"))),
        ("{}", ()),
        ("[]", ()),
        ("", ()),
    ],
)
def test_the_proposals_arguments_are_a_list_as_it_is_or_a_map_in_upper_case(
    extra: str, env: tuple[tuple[str, str], ...]
) -> None:
    """I18."""
    assert loads(PROPOSED.format(kind="credentialprovider", version="v1alpha1", extra=extra)).providers[0].env == env


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("us-west-2", "5", "providers[0].extraArgs.region"),
        ("ecr-creds", "a/b", "providers[0].name"),
        ("imageMatchers", "matchImages", "providers[0].matchImages"),
        ("  name", "  args: []\n  name", "providers[0].args"),
        ('"*.dkr.ecr.*.amazonaws.com"', '"%invalid%"', "providers[0].imageMatchers[0]"),
    ],
)
def test_the_proposals_dialect_is_checked_too(old: str, new: str, path: str) -> None:
    text = PROPOSED.format(kind="credentialprovider", version="v1alpha1", extra="{region: us-west-2}")
    assert path in [problem.place.path for problem in error_of(text.replace(old, new)).problems]


def test_a_kind_and_version_of_the_proposals_provider_itself_are_known() -> None:
    text = PROPOSED.format(kind="credentialprovider", version="v1alpha1", extra="[]")
    assert loads(text.replace("  name", "  kind: x\n  apiVersion: y\n  name"))


def test_both_dialects_may_stand_in_one_directory(tmp_path: Path) -> None:
    """I39."""
    write(
        tmp_path,
        a__yaml=FIRST,
        b__yaml=PROPOSED.format(kind="credentialprovider", version="v1alpha1", extra="[]"),
    )
    assert [one.dialect for one in load(tmp_path).providers] == [ProviderDialect.KUBELET, ProviderDialect.PROPOSAL]


# --- properties ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["10m", V1, "a.io", "%"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "value", "cacheType", "x"]), children, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env", "tokenAttributes", "imageMatchers"]
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(FIELDS, VALUES), max_size=3), st.sampled_from(CONFIG_API_VERSIONS))
def test_any_configuration_is_read_or_refused(providers: list[dict[str, Any]], version: str) -> None:
    with suppress(ConfigurationError):
        assert len(loads(document(*providers, version=version)).providers) == len(providers)


@pytest.mark.parametrize("source", [b"\xff", "\ud800", b"a: [", "a: \x00"])
def test_what_is_no_yaml_is_refused(source: str | bytes) -> None:
    assert error_of(source).code == "config-syntax"


def test_token_attributes_are_read() -> None:
    attributes = {
        "serviceAccountTokenAudience": "audience",
        "cacheType": "Token",
        "requireServiceAccount": True,
        "requiredServiceAccountAnnotationKeys": ["domain.io/Required"],
        "optionalServiceAccountAnnotationKeys": ["domain.io/optional", "plain"],
    }
    (one,) = loads(document(provider(tokenAttributes=attributes))).providers
    assert one.token_attributes == TokenAttributes(
        "audience", "Token", True, ("domain.io/Required",), ("domain.io/optional", "plain")
    )
