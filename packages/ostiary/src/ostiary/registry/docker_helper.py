"""The program ``docker-credential-ostiary``: a credential helper for docker, podman, skopeo and crane.

    get   server on stdin -> the daemon, if one runs -> its output, unchanged
                    else  -> an image of that registry -> Keyring -> the first credential, as JSON

The credential providers are those of `user_config`. By the helper protocol, the message for docker is on stdout; stderr
explains a failure to the user. It starts on every image pull, so modules are imported only when needed, even for types.
"""

import sys

# Not from typing: that import alone would cost more than calling the daemon.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ostiary.registry.kubelet.model import ProvidersConfig

NO_SERVER = "no credentials server URL"
NOT_IMPLEMENTED = "not implemented: ostiary reads credentials from providers"
USAGE = "usage: docker-credential-ostiary get|store|erase|list|version"
HELP = f"""\
{USAGE}

A docker credential helper: docker, podman, skopeo and crane run it, with the address of a registry on stdin.
The logins come from the credential providers of $OSTIARY_REGISTRY_CONFIG, else ~/.config/ostiary/registry.yaml.
If `ostiary registry serve` runs, it is asked, and keeps the logins in its memory.
To see why a registry gets a login or none: ostiary registry explain IMAGE
"""
OK, FAILED = 0, 1
LARGEST_INPUT = 1 << 20


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
        return commands[words[0]](argv is None)
    except KeyboardInterrupt:
        return FAILED
    except Exception as error:
        return _fail(error)


# --- the commands ---


def _get(is_program: bool) -> int:
    server = _read_server()
    if not server:
        return _answer(NO_SERVER, FAILED)
    code = _ask_daemon(b"docker-get", server, is_program)
    return _look_up(server) if code is None else code


def _store(is_program: bool) -> int:
    # Read stdin to its end anyway, or the writer would get a broken pipe.
    sys.stdin.buffer.read(LARGEST_INPUT)
    return _answer(NOT_IMPLEMENTED, FAILED)


def _erase(is_program: bool) -> int:
    """Evict the credentials that a registry rejected. Only the daemon caches any between runs."""
    server = _read_server()
    if not server:
        return _answer(NO_SERVER, FAILED)
    code = _ask_daemon(b"docker-erase", server, is_program)
    return OK if code is None else code


def _list(is_program: bool) -> int:
    """List the registries that are named in full. Their usernames are unknown before a provider has run."""
    import json

    patterns = [pattern for provider in _config().providers for pattern in provider.match_images]
    hosts = [pattern for pattern in patterns if not any(char in pattern for char in "*/?[")]
    return _answer(json.dumps(dict.fromkeys(hosts, "")))


def _version(is_program: bool) -> int:
    from ostiary import __version__

    return _answer(f"docker-credential-ostiary (ostiary) {__version__}")


# --- lookup ---


def _ask_daemon(verb: bytes, server: str, is_program: bool) -> int | None:
    """Write the daemon's response and return its exit code; None if there is no daemon."""
    from ostiary.registry.daemon import relay
    from ostiary.registry.user_config import bin_dir, config_path

    texts = (relay.absolute(config_path()), relay.absolute(bin_dir()), server)
    code = relay.ask("docker-credential-ostiary", verb, *texts)
    if code is not None and is_program:
        relay.leave_at_once(code)
    return code


def _look_up(server: str) -> int:
    from ostiary.registry.docker_helper_protocol import NOT_FOUND, image_of

    image = image_of(server)
    if image is None:
        return _answer(NOT_FOUND, FAILED)

    import logging

    from ostiary.core.provider_switches import Switches
    from ostiary.registry.docker_login_search import LoginSearch
    from ostiary.registry.keyring import Keyring
    from ostiary.registry.user_config import bin_dir, search_path

    # This program reports what the keyring would log.
    logging.getLogger("ostiary").addHandler(logging.NullHandler())
    # Without the docker configuration, whose client is our caller.
    config = _config()
    keyring = Keyring(config, bin_dir=bin_dir(), search_path=search_path(), switches=Switches())
    search = LoginSearch(server, image, config)
    for name in search.images():
        if search.take(keyring.lookup(name)):
            break
    code, stdout, stderr = search.output()
    sys.stderr.write(stderr)
    return _answer(stdout, code)


def _config() -> "ProvidersConfig":
    from ostiary.registry.kubelet.config import load
    from ostiary.registry.user_config import config_path

    # Without bin_dir: one missing executable must not disable the other providers.
    return load(config_path())


def _read_server() -> str:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(LARGEST_INPUT)
    return "".join(data.decode("utf-8", "replace").splitlines()).strip()


# --- output ---


def _answer(text: str, code: int = OK) -> int:
    from ostiary.core.text import printable

    # Credentials are JSON, which escapes unprintable characters; a message may quote a file.
    print(text if code == OK else printable(text))  # noqa: T201
    return code


def _fail(error: Exception) -> int:
    from ostiary.core.redaction import redact
    from ostiary.core.text import printable
    from ostiary.errors import OstiaryError

    if isinstance(error, OstiaryError):
        print(f"docker-credential-ostiary: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return _answer(error.summary, FAILED)
    print(f"docker-credential-ostiary: {type(error).__name__}: {redact(str(error))}", file=sys.stderr)  # noqa: T201
    return _answer("docker-credential-ostiary failed", FAILED)


if __name__ == "__main__":
    sys.exit(main())
