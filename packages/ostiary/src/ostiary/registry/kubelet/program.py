"""The program ``ostiary-credential-provider``: one credential provider for many registries, by configuration alone.

    request on stdin -> the daemon, if one runs -> its response, unchanged
               else  -> the sources whose matchImages match, in order -> the first that has a login -> response

    apiVersion: ostiary/v1
    kind: ImageCredentialSources
    sources:
    - matchImages: ["*.example.com"]
      helper: docker-credential-pass             # or authFile, or command, or tokenExchange
      cacheDuration: 10m

The kubelet runs it with ``--config FILE`` for every image that it pulls, so modules are imported only when needed.
"""

import sys

PROGRAM = "ostiary-credential-provider"
USAGE = f"usage: {PROGRAM} --config FILE"
HELP = f"""\
{USAGE} < REQUEST

One image credential provider for many registries, by configuration alone: docker credential helpers, auth files,
commands and token exchanges. It reads a CredentialProviderRequest as JSON on stdin and prints a
CredentialProviderResponse. The kubelet runs it. To try it by hand:

  ostiary registry check --image IMAGE {PROGRAM} --config FILE
"""
OK, FAILED, WRONG_USAGE = 0, 1, 2

LARGEST_REQUEST = 1 << 20


def main(argv: list[str] | None = None) -> int:
    """Handle one request of the kubelet and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words in (["--help"], ["-h"]):
        print(HELP, end="")  # noqa: T201
        return OK
    path = _config_path(words)
    if path is None:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return WRONG_USAGE
    stdin = sys.stdin.buffer.read(LARGEST_REQUEST)
    try:
        code = _ask_daemon(path, stdin, is_program=argv is None)
        if code is not None:
            return code
        data = _response(path, stdin)
    except Exception as error:
        return _fail(error)
    # Written in one piece, and only when nothing can fail any more.
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return OK


def own_name() -> str:
    """Return the name of this provider in the kubelet's configuration: the name of the executable."""
    return sys.argv[0].rpartition("/")[2] or PROGRAM


def _ask_daemon(path: str, stdin: bytes, *, is_program: bool) -> int | None:
    """Write the daemon's response and return its exit code; None if there is no daemon."""
    from ostiary.registry.daemon import relay

    code = relay.ask(PROGRAM, b"provide", relay.absolute(path), own_name(), stdin, seconds=relay.PROVIDE_SECONDS)
    if code is not None and is_program:
        relay.leave_at_once(code)
    return code


def _response(path: str, stdin: bytes) -> bytes:
    from ostiary.core.provider_switches import Switches
    from ostiary.registry.kubelet.respond import respond, respond_disabled
    from ostiary.registry.kubelet.sources import load
    from ostiary.wire.credential_provider import decode_request, encode_response

    switched_off = Switches().disabled(own_name())
    request = decode_request(stdin)
    if switched_off is not None:
        print(f"{PROGRAM}: {switched_off}", file=sys.stderr)  # noqa: T201
        return encode_response(respond_disabled(), api_version=request.api_version)
    return encode_response(respond(request, load(path)), api_version=request.api_version)


def _fail(error: Exception) -> int:
    from ostiary.core.redaction import redact
    from ostiary.core.text import printable
    from ostiary.errors import OstiaryError

    # Other errors are bugs of ours; a traceback in the kubelet's log could contain secrets.
    is_ours = isinstance(error, OstiaryError)
    text = printable(str(error)) if is_ours else f"{type(error).__name__}: {redact(str(error))}"
    print(f"{PROGRAM}: {text}", file=sys.stderr)  # noqa: T201
    return FAILED


def _config_path(argv: list[str]) -> str | None:
    match argv:
        case ["--config", path]:
            return path
        case [word] if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


if __name__ == "__main__":
    sys.exit(main())
