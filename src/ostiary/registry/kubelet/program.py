"""The program ``ostiary-credential-provider``: one credential provider for many registries, by configuration alone.

    request on stdin -> the sources whose matchImages match, in order -> the first that has a login -> response

    apiVersion: ostiary/v1
    kind: ImageCredentialSources
    sources:
    - matchImages: ["*.example.com"]
      helper: docker-credential-pass             # or authFile, or command, or tokenExchange
      cacheDuration: 10m

Run by the kubelet with ``--config FILE`` among the provider's args, for every image that it pulls, so nothing is
imported before it is needed. `respond` asks the sources.
"""

from __future__ import annotations

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
    """Answer one request of the kubelet and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words in (["--help"], ["-h"]):
        print(HELP, end="")  # noqa: T201
        return OK
    path = _config_path(words)
    if path is None:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return WRONG_USAGE
    return _answer(path)


def _answer(path: str) -> int:
    from ostiary.core.secrets.redact import redact
    from ostiary.core.text import printable
    from ostiary.errors import OstiaryError
    from ostiary.registry.kubelet.respond import respond
    from ostiary.registry.kubelet.sources.config import load
    from ostiary.wire.credential_provider import decode_request, encode_response

    try:
        sources = load(path)
        request = decode_request(sys.stdin.buffer.read(LARGEST_REQUEST))
        data = encode_response(respond(request, sources), api_version=request.api_version)
    except OstiaryError as error:
        print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    except Exception as error:
        # A mistake of ours; a traceback would go into the kubelet's log, with who knows what in it.
        print(f"{PROGRAM}: {type(error).__name__}: {redact(str(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    # At once and whole, and only when nothing can go wrong any more.
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return OK


def _config_path(argv: list[str]) -> str | None:
    match argv:
        case ["--config", path]:
            return path
        case [word] if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


if __name__ == "__main__":
    sys.exit(main())
