"""Names of images are normalised as the kubelet does it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError, ImageNameError
from ostiary.registry.image_name import ImageName, parse_image_name

SHA256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_names_are_taken_apart_as_the_kubelet_does(subtests: pytest.Subtests) -> None:
    """TestParseImageName: the repository has neither tag nor digest. I11."""
    cases = [
        ("root", "docker.io/library/root", "latest", ""),
        ("root:tag", "docker.io/library/root", "tag", ""),
        (f"root@{SHA256}", "docker.io/library/root", "", SHA256),
        ("user/repo", "docker.io/user/repo", "latest", ""),
        ("user/repo:tag", "docker.io/user/repo", "tag", ""),
        (f"user/repo@{SHA256}", "docker.io/user/repo", "", SHA256),
        ("url:5000/repo", "url:5000/repo", "latest", ""),
        ("url:5000/repo:tag", "url:5000/repo", "tag", ""),
        (f"url:5000/repo@{SHA256}", "url:5000/repo", "", SHA256),
        (f"url:5000/repo:latest@{SHA256}", "url:5000/repo", "latest", SHA256),
    ]
    for text, repository, tag, digest in cases:
        with subtests.test(text=text, repository=repository, tag=tag, digest=digest):
            name = parse_image_name(text)
            assert (name.repository, name.tag, name.digest) == (repository, tag, digest)


def test_the_first_segment_is_a_domain_only_if_it_looks_like_one(subtests: pytest.Subtests) -> None:
    """I11."""
    cases = [
        ("localhost/app", "localhost", "app"),
        ("localhost:5000/app", "localhost:5000", "app"),
        ("gcr.io/team/app", "gcr.io", "team/app"),
        ("team/app", "docker.io", "team/app"),
        ("Host/app", "Host", "app"),
        ("GCR.io/app", "GCR.io", "app"),
        ("localhost", "docker.io", "library/localhost"),
        ("example.com", "docker.io", "library/example.com"),
        ("[::1]:5000/app", "[::1]:5000", "app"),
        ("127.0.0.1/app", "127.0.0.1", "app"),
        ("a.b/c/d/e/f", "a.b", "c/d/e/f"),
        ("team/a__b", "docker.io", "team/a__b"),
        ("team/a---b", "docker.io", "team/a---b"),
    ]
    for text, domain, path in cases:
        with subtests.test(text=text, domain=domain, path=path):
            assert parse_image_name(text) == ImageName(domain, path, "latest")


def test_docker_hub_has_one_name_and_a_default_namespace(subtests: pytest.Subtests) -> None:
    """I11."""
    cases = [
        ("index.docker.io/x", "docker.io/library/x"),
        ("index.docker.io/team/x", "docker.io/team/x"),
        ("docker.io/x", "docker.io/library/x"),
        ("docker.io/team/x", "docker.io/team/x"),
        ("registry-1.docker.io/x", "registry-1.docker.io/x"),
        ("quay.io/x", "quay.io/x"),
    ]
    for text, repository in cases:
        with subtests.test(text=text, repository=repository):
            assert parse_image_name(text).repository == repository


def test_a_host_that_cannot_be_one_counts_as_path() -> None:
    """As in the distribution grammar: the repository is the same text, so that patterns still see the host."""
    name = parse_image_name("my_host.io/app:1")
    assert name == ImageName("", "my_host.io/app", "1")
    assert name.repository == "my_host.io/app"


def test_what_is_no_image_name_is_refused(subtests: pytest.Subtests) -> None:
    """The scheme, and the rest of the grammar. I11."""
    cases = [
        ("ROOT", "must be lowercase"),
        ("quay.io/Team/app", "must be lowercase"),
        ("http://root", "invalid reference format"),
        ("a" * 64, "cannot specify 64-byte hexadecimal strings"),
        ("", "invalid reference format"),
        ("/app", "invalid reference format"),
        ("team/", "invalid reference format"),
        ("team//app", "invalid reference format"),
        ("app:", "invalid reference format"),
        ("app:-tag", "invalid reference format"),
        ("app:" + "t" * 129, "invalid reference format"),
        ("app tag", "invalid reference format"),
        ("app\n", "invalid reference format"),
        ("app:tag\n", "invalid reference format"),
        ("team/a___b", "invalid reference format"),
        ("team/a..b", "invalid reference format"),
        ("-app", "invalid reference format"),
        ("appé", "invalid reference format"),
        ("app@sha256:abc", "invalid reference format"),
        ("quay.io/" + "a" * 256, "must not be more than 255 characters"),
        ("app@sha256:" + "a" * 63, "invalid checksum digest length"),
        ("app@sha256:" + "A" * 64, "invalid checksum digest format"),
        ("app@md5:" + "a" * 32, "unsupported digest algorithm"),
    ]
    for text, cause in cases:
        with subtests.test(text=text, cause=cause):
            with pytest.raises(ImageNameError) as caught:
                parse_image_name(text)
            assert cause in (caught.value.cause or "")
            assert caught.value.code == "image-name-invalid"
            assert isinstance(caught.value, ConfigurationError)


def test_a_path_of_255_characters_and_a_tag_of_128_are_taken() -> None:
    name = parse_image_name("quay.io/" + "a" * 255 + ":" + "t" * 128)
    assert (len(name.path), len(name.tag)) == (255, 128)


@pytest.mark.parametrize(("algorithm", "size"), [("sha256", 64), ("sha384", 96), ("sha512", 128)])
def test_every_digest_algorithm_of_the_kubelet_is_known(algorithm: str, size: int) -> None:
    digest = f"{algorithm}:{'0' * size}"
    assert parse_image_name(f"app@{digest}").digest == digest


def test_an_error_shows_no_password_of_a_pasted_url_and_no_control_character() -> None:
    with pytest.raises(ImageNameError) as caught:
        parse_image_name("https://user:hunter2@quay.io/app")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ImageNameError) as caught:
        parse_image_name("app\x1b[2J")
    assert "\x1b" not in str(caught.value)


def test_a_name_is_written_as_it_would_be_pulled() -> None:
    assert str(parse_image_name(f"nginx:1@{SHA256}")) == f"docker.io/library/nginx:1@{SHA256}"


WORDS = st.text(alphabet="abz09", min_size=1, max_size=6)
SEGMENTS = st.builds("{}{}{}".format, WORDS, st.sampled_from([".", "_", "__", "-", "---"]), WORDS) | WORDS


@settings(deadline=None)
@given(st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join))
def test_a_normalised_name_stays_as_it_is(text: str) -> None:
    name = parse_image_name(text)
    assert parse_image_name(str(name)) == name
    assert parse_image_name(name.repository).repository == name.repository


@settings(deadline=None)
@given(st.text(alphabet="aA0.:/@-_[]sh256 é\n") | st.text())
def test_any_text_is_a_name_or_an_image_name_error(text: str) -> None:
    with suppress(ImageNameError):
        parse_image_name(text)


@pytest.mark.parametrize("text", ["a-" * 50_000, "a." * 50_000 + "/!", "A" + "-a" * 50_000 + "/!", "a/" * 50_000])
def test_a_very_long_text_is_refused_without_much_work(text: str) -> None:
    with pytest.raises(ImageNameError):
        parse_image_name(text)
