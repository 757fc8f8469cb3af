"""The name of an image, normalised as the kubelet does it before it looks for a credential.

    nginx  ->  docker.io / library/nginx : latest

Called first in a lookup: patterns are matched against `ImageName.repository`, which has a domain and a path and
neither tag nor digest. The grammar is that of the distribution project's references.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostiary.core.secrets.redact import redact
from ostiary.core.text import printable
from ostiary.errors import ImageNameError

DOCKER_HUB = "docker.io"
OLD_DOCKER_HUB = "index.docker.io"
LOCALHOST = "localhost"
DEFAULT_TAG = "latest"
LONGEST_PATH = 255

_COMPONENT = r"[a-z0-9]+(?:(?:__|[._]|-+)[a-z0-9]+)*"
_DOMAIN_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:{_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?"
)
_IMAGE_ID = re.compile(r"[a-f0-9]{64}")
_HEX_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class ImageName:
    """A normalised name; `tag` and `digest` are empty when absent.

    `domain` is empty in one odd case: a host that cannot be one (``my_host.io/app``) counts as path.
    """

    domain: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """What patterns are matched against, and what a credential provider is asked for."""
        return f"{self.domain}/{self.path}" if self.domain else self.path

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return self.repository + tag + (f"@{self.digest}" if self.digest else "")


def parse_image_name(text: str) -> ImageName:
    """The image that *text* names; raises `ImageNameError`.

    An image with neither tag nor digest gets the tag ``latest``.
    """
    if _IMAGE_ID.fullmatch(text):
        cause = "invalid repository name: cannot specify 64-byte hexadecimal strings"
        raise _unusable(text, cause, "this is the id of an image; name its repository")
    domain, rest = _split_domain(text)
    _check_lower_case(text, rest.partition(":")[0])
    match = _REFERENCE.fullmatch(f"{domain}/{rest}")
    if match is None:
        raise _unusable(text, "invalid reference format", _format_hint(text))
    if len(match["path"]) > LONGEST_PATH:
        raise _unusable(text, f"repository name must not be more than {LONGEST_PATH} characters")
    digest = match["digest"] or ""
    if digest:
        _check_digest(text, digest)
    tag = match["tag"] or ("" if digest else DEFAULT_TAG)
    return ImageName(match["domain"] or "", match["path"], tag, digest)


def _split_domain(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    if not slash or not _looks_like_domain(first):
        domain, rest = DOCKER_HUB, text
    else:
        domain = DOCKER_HUB if first == OLD_DOCKER_HUB else first
    # Only the Hub keeps images without a namespace, and keeps them in this one.
    return domain, f"library/{rest}" if domain == DOCKER_HUB and "/" not in rest else rest


def _looks_like_domain(text: str) -> bool:
    return text == LOCALHOST or "." in text or ":" in text or text.lower() != text


def _check_lower_case(text: str, repository: str) -> None:
    if repository.lower() != repository:
        hint = "write the repository in lower case; only the host and the tag may have capitals"
        raise _unusable(text, "invalid reference format: repository name must be lowercase", hint)


def _check_digest(text: str, digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    algorithms = ", ".join(_HEX_DIGITS)
    if algorithm not in _HEX_DIGITS:
        raise _unusable(text, "unsupported digest algorithm", f"the algorithms are {algorithms}")
    if len(encoded) != _HEX_DIGITS[algorithm]:
        raise _unusable(text, "invalid checksum digest length", f"{algorithm} has {_HEX_DIGITS[algorithm]} hex digits")
    if encoded.lower() != encoded:
        raise _unusable(text, "invalid checksum digest format", "write the digest in lower case")


def _format_hint(text: str) -> str:
    if _SCHEME.match(text):
        return "an image name has no scheme: leave out what stands before and with ://"
    if not text:
        return "name an image, such as registry.example.com/team/app:1.0"
    return "an image name looks like registry.example.com:5000/team/app:1.0"


def _unusable(text: str, cause: str, hint: str | None = None) -> ImageNameError:
    # A pasted URL may hold a password before its host.
    displayed = redact(text) if _SCHEME.match(text) else printable(text)
    return ImageNameError(f'"{displayed}" is not the name of an image', cause=cause, hint=hint)
