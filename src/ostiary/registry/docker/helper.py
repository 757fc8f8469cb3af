"""The program ``docker-credential-ostiary``: the registry door for docker, podman, skopeo and crane.

    get   server on stdin -> an image of that registry -> Keyring -> the first credential, as JSON

The credential providers are those of `user_config`. By the helper protocol a message for docker stands on stdout; why
something failed is told on stderr, to a person.

It starts for every image that is pulled, so nothing is imported before it is needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostiary.errors import OstiaryError
    from ostiary.registry.credentials import ImageCredential
    from ostiary.registry.keyring import Lookup
    from ostiary.registry.kubelet.model import ProvidersConfig

NO_SERVER = "no credentials server URL"
NOT_IMPLEMENTED = "not implemented: ostiary reads credentials from providers"
USAGE = "usage: docker-credential-ostiary get|store|erase|list|version"
HELP = f"""\
{USAGE}

A docker credential helper: docker, podman, skopeo and crane run it, with the address of a registry on stdin.
The logins come from the credential providers of $OSTIARY_REGISTRY_CONFIG, else ~/.config/ostiary/registry.yaml.
To see why a registry gets a login or none: ostiary registry explain IMAGE
"""
OK, FAILED = 0, 1
LARGEST_INPUT = 1 << 20
# Clients name a registry to their helpers and no image.
ANY_IMAGE = "any/image"


def main(argv: list[str] | None = None) -> int:
    """Run one command of the helper protocol and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    commands = {"get": _get, "store": _store, "erase": _erase, "list": _list, "version": _version}
    if words in (["--help"], ["-h"]):
        print(HELP, end="")  # noqa: T201
        return OK
    if len(words) != 1 or words[0] not in commands:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return FAILED
    try:
        return commands[words[0]]()
    except KeyboardInterrupt:
        return FAILED
    except Exception as error:
        return _fail(error)


# --- the commands ---


def _get() -> int:
    import json

    server = _read_server()
    if not server:
        return _answer(NO_SERVER, FAILED)
    image = image_of(server)
    if image is None:
        return _not_found()
    failures: list[OstiaryError] = []
    for lookup in _look_up(image):
        credential = next((each for each in lookup if _is_login(each)), None)
        if credential is not None:
            return _answer(json.dumps({"ServerURL": server, **_login_fields(credential)}))
        failures += [failure.error for failure in lookup.failures]
    for error in failures:
        _tell(error)
    if failures:
        # "Not found" would make a client try without a credential, and hide the reason.
        return _answer("a credential provider failed: " + failures[0].summary, FAILED)
    return _not_found()


def _store() -> int:
    # Read to its end all the same: who writes would otherwise die of a broken pipe.
    sys.stdin.buffer.read(LARGEST_INPUT)
    return _answer(NOT_IMPLEMENTED, FAILED)


def _erase() -> int:
    """Forget what a registry rejected. Nothing is kept from one run to the next, so it is forgotten already."""
    return OK if _read_server() else _answer(NO_SERVER, FAILED)


def _list() -> int:
    """The registries that are named in full. Who signs in there is not known before a provider has run."""
    import json

    patterns = [pattern for provider in _config().providers for pattern in provider.match_images]
    hosts = [pattern for pattern in patterns if not any(char in pattern for char in "*/?[")]
    return _answer(json.dumps(dict.fromkeys(hosts, "")))


def _version() -> int:
    from ostiary import __version__

    return _answer(f"docker-credential-ostiary (ostiary) {__version__}")


# --- what is asked ---


def image_of(server: str) -> str | None:
    """An image of the registry that *server* names: a URL, a host, or already a repository.

    None for a host that no image name can have, such as ``build-server``: that name would be read as one of
    Docker Hub's, and Docker Hub's credential must not be given to somebody else.
    """
    from ostiary.registry.docker.helper_protocol import HUB_NAMES
    from ostiary.registry.matching.image_name import DOCKER_HUB, parse_image_name

    address = server.partition("://")[2] or server
    # Without a user: a URL may have one before its host.
    host, _, path = address.rpartition("@")[2].partition("/")
    if f"{path}/".startswith(("v1/", "v2/")):
        path = f"{path}/"[3:]
    domain = DOCKER_HUB if host in HUB_NAMES else host
    image = f"{domain}/{path.strip('/') or ANY_IMAGE}"
    return image if parse_image_name(image).domain == domain else None


def _config() -> ProvidersConfig:
    from ostiary.registry.kubelet.config import load
    from ostiary.registry.user_config import config_path

    # Not with bin_dir: one missing executable must not take away the other providers.
    return load(config_path())


def _look_up(image: str) -> Iterator[Lookup]:
    """What is found for the registry as a whole; after that, for each part of it that a pattern names."""
    import logging

    from ostiary.registry.keyring import Keyring
    from ostiary.registry.user_config import bin_dir, search_path

    # What the keyring would log is told by us.
    logging.getLogger("ostiary").addHandler(logging.NullHandler())
    # Without the docker configuration: that is who asks us.
    config = _config()
    keyring = Keyring(config, bin_dir=bin_dir(), search_path=search_path())
    yield keyring.lookup(image)
    if image.endswith(f"/{ANY_IMAGE}"):
        for part in parts_of(image.removesuffix(f"/{ANY_IMAGE}"), config):
            yield keyring.lookup(f"{part}/{ANY_IMAGE}")


def parts_of(registry: str, config: ProvidersConfig) -> list[str]:
    """The parts of *registry* that patterns name by a path, each once, in the order of the configuration.

    Clients ask their helper for the registry only, so whichever part the image is in, its credential is
    the one to give; with several, the first that has one.
    """
    from ostiary.errors import ImageNameError
    from ostiary.registry.matching.image_match import matches
    from ostiary.registry.matching.image_name import parse_image_name

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


def _read_server() -> str:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(LARGEST_INPUT)
    return "".join(data.decode("utf-8", "replace").splitlines()).strip()


# --- what is answered ---


def _is_login(found: ImageCredential) -> bool:
    # A provider may answer with nothing at all for "without a credential".
    return bool(found.identity_token or found.username or found.password)


def _login_fields(found: ImageCredential) -> dict[str, str]:
    from ostiary.registry.docker.helper_protocol import TOKEN_USERNAME

    if found.identity_token:
        return {"Username": TOKEN_USERNAME, "Secret": found.identity_token.reveal()}
    return {"Username": found.username, "Secret": found.password.reveal()}


def _not_found() -> int:
    from ostiary.registry.docker.helper_protocol import NOT_FOUND

    return _answer(NOT_FOUND, FAILED)


def _answer(text: str, code: int = OK) -> int:
    from ostiary.core.text import printable

    # An answer is JSON, which escapes what is not printable; a message may name what stands in a file.
    print(text if code == OK else printable(text))  # noqa: T201
    return code


def _fail(error: Exception) -> int:
    from ostiary.core.secrets.redact import redact
    from ostiary.errors import OstiaryError

    if isinstance(error, OstiaryError):
        _tell(error)
        return _answer(error.summary, FAILED)
    print(f"docker-credential-ostiary: {type(error).__name__}: {redact(str(error))}", file=sys.stderr)  # noqa: T201
    return _answer("docker-credential-ostiary failed", FAILED)


def _tell(error: OstiaryError) -> None:
    from ostiary.core.text import printable

    print(f"docker-credential-ostiary: {printable(str(error))}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
