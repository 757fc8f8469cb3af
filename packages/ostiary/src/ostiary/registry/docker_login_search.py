"""From a registry name to the output of a docker helper: the first login of one or several lookups.

Used by `docker_helper` itself and by the daemon. Does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from ostiary.core.text import printable
from ostiary.errors import ImageNameError, OstiaryError
from ostiary.registry.credentials import ImageCredential
from ostiary.registry.docker_helper_protocol import ANY_IMAGE, NOT_FOUND, TOKEN_USERNAME
from ostiary.registry.image_matching import matches
from ostiary.registry.image_name import parse_image_name
from ostiary.registry.keyring import Lookup
from ostiary.registry.kubelet.model import ProvidersConfig

OK, FAILED = 0, 1


class HelperOutput(NamedTuple):
    """What the helper prints on stdout and stderr, and its exit code."""

    code: int
    stdout: str
    stderr: str = ""


class LoginSearch:
    """The search for one request: `images` are looked up in turn, until `take` accepts a result."""

    def __init__(self, server: str, image: str, config: ProvidersConfig) -> None:
        self._server, self._image, self._config = server, image, config
        self._login: ImageCredential | None = None
        self._failures: list[OstiaryError] = []
        self._notes: dict[str, None] = {}

    def images(self) -> Iterator[str]:
        """Yield the registry as a whole, and then each part of it that a pattern names."""
        yield self._image
        if self._image.endswith(f"/{ANY_IMAGE}"):
            for part in parts_of(self._image.removesuffix(f"/{ANY_IMAGE}"), self._config):
                yield f"{part}/{ANY_IMAGE}"

    def take(self, lookup: Lookup) -> bool:
        """Add the result of a lookup; returns whether the search is over."""
        self._login = next((each for each in lookup if _is_login(each)), None)
        self._failures += [failure.error for failure in lookup.failures]
        self._notes |= dict.fromkeys(f"{each.provider}: {each.reason}" for each in lookup.skipped)
        return self._login is not None

    def output(self) -> HelperOutput:
        if self._login is not None:
            return HelperOutput(OK, json.dumps({"ServerURL": self._server, **_login_fields(self._login)}))
        stderr = "".join(tell(str(error)) for error in self._failures)
        stderr += "".join(tell(note) for note in self._notes)
        if self._failures:
            # "Not found" would make a client try without a credential, and hide the reason.
            return HelperOutput(FAILED, printable(f"a credential provider failed: {self._failures[0].summary}"), stderr)
        return HelperOutput(FAILED, NOT_FOUND, stderr)


def tell(text: str) -> str:
    """Format *text* as a message of the helper for the user."""
    return f"docker-credential-ostiary: {printable(text)}\n"


def parts_of(registry: str, config: ProvidersConfig) -> list[str]:
    """Return the parts of *registry* that patterns name by a path, each once, in the order of the configuration.

    Clients pass only the registry to their helper, so the credential of any part may be the right one; with several,
    the first part that has one is used.
    """
    parts: dict[str, None] = {}
    for provider, pattern in ((each, pattern) for each in config.providers for pattern in each.match_images):
        host, _, path = pattern.partition("/")
        part = f"{registry}/{path.strip('/')}"
        try:
            is_of_registry = matches(host, registry, any_port=provider.any_port)
            if path.strip("/") and is_of_registry and parse_image_name(part).repository == part:
                parts[part] = None
        except ImageNameError:
            # A star in a path, say, which no image has.
            continue
    return list(parts)


def _is_login(found: ImageCredential) -> bool:
    # A provider may return an empty login to mean "without a credential".
    return bool(found.identity_token or found.username or found.password)


def _login_fields(found: ImageCredential) -> dict[str, str]:
    if found.identity_token:
        return {"Username": TOKEN_USERNAME, "Secret": found.identity_token.reveal()}
    return {"Username": found.username, "Secret": found.password.reveal()}
