"""The cached credential of ``ostiary get-token --from``, in a file sealed with a secret of the platform.

    kubectl -> get-token --from github -> which platform? -> the secret that only this job has
        -> names the file and opens it -> a valid credential -> its bytes

Like `cached_token`, it imports only modules of the interpreter, and `_blake2`.

Jobs of several projects may run as the same user of the same machine. The name of the file therefore depends on a
secret of this job or pod (GitHub's request token, the ID token, the projected token file), and the content is encrypted
and authenticated with it: a job can neither find nor read the file of another. A platform without such a secret has no
cache.

    ostiary-sealed 1 <renew at>\\n <16 bytes nonce> <32 bytes tag> <the token file of `cached_token`, encrypted>
"""

import time

try:
    from _blake2 import blake2b
except ImportError:  # Interpreters built without _blake2 use OpenSSL's.
    from hashlib import blake2b

from ostiary.cli.cached_token import (
    LARGEST,
    asked_version,
    asks_again,
    print_answer,
    private_content,
    state_folder,
    system,
    usable_answer,
)

AUTO = "auto"
KUBERNETES, GITHUB, GITLAB, SPIFFE, FILE = "kubernetes", "github", "gitlab", "spiffe", "file"
PLATFORMS = (KUBERNETES, GITHUB, GITLAB, SPIFFE, FILE)
# Options of get-token that are supported together with --from.
WITH_VALUE = ("--from", "--server", "--audience", "--token-file", "--token-variable", "--scope", "--ca")

FILE_VARIABLE = b"OSTIARY_IDENTITY_TOKEN_FILE"
GITLAB_VARIABLE = "OSTIARY_ID_TOKEN"
GITHUB_SECRET = b"ACTIONS_ID_TOKEN_REQUEST_TOKEN"
SPIFFE_SOCKET = b"SPIFFE_ENDPOINT_SOCKET"
# The mount paths of the projected token in the how-to page's manifests, and of the pod's own token.
PROJECTED_TOKEN = "/var/run/secrets/ostiary/token"  # noqa: S105
POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105

_HEAD = b"ostiary-sealed 1 "
_NONCE, _TAG, _BLOCK = 16, 32, 64

Options = dict[str, str]
Environ = dict[bytes, bytes]


def print_cached(argv: list[str]) -> bool:
    """Print the cached credential for the command line *argv*. False if there is no usable one."""
    answer = _cached_answer(argv)
    return answer is not None and print_answer(answer)


def _cached_answer(argv: list[str]) -> bytes | None:
    options, version, folder = _options(argv), asked_version(), state_folder()
    if options is None or version is None or folder is None:
        return None
    name_and_secret = cache_entry(options, system.environ)
    if name_and_secret is None:
        return None
    name, secret = name_and_secret
    sealed = private_content(f"{folder}/{name}.token")
    data = None if sealed is None else unseal(sealed, secret)
    now = time.time()
    answer = None if data is None else usable_answer(data, version, now)
    return None if answer is None or asks_again(f"{folder}/{name}.asked", now) else answer


def _options(argv: list[str]) -> Options | None:
    options: Options = {}
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option == "--can":
            rule = value if equals else next(words, "")
            options["--can"] = f"{options['--can']}\n{rule}" if "--can" in options else rule
        elif option in WITH_VALUE:
            options[option] = value if equals else next(words, "")
        else:
            return None
    return options if all(options.values()) and "--server" in options and "--from" in options else None


# --- platform and secret ---


def platform_of(options: Options, environ: Environ) -> str | None:
    """Return the platform of ``--from``. For ``auto`` the first one detected, or None.

    CI systems take precedence over the pod that the job runs in: a job that may not have an ID token must not act as
    its runner's service account.
    """
    platform = options.get("--from", AUTO)
    if platform != AUTO:
        return platform if platform in PLATFORMS else None
    if "--token-file" in options or environ.get(FILE_VARIABLE):
        return FILE
    if environ.get(b"GITHUB_ACTIONS") == b"true":
        return GITHUB
    if environ.get(b"GITLAB_CI") == b"true":
        return GITLAB
    if _exists(PROJECTED_TOKEN):
        return KUBERNETES
    if environ.get(SPIFFE_SOCKET):
        return SPIFFE
    return KUBERNETES if environ.get(b"KUBERNETES_SERVICE_HOST") and _exists(POD_TOKEN) else None


def named_token_file(options: Options, environ: Environ) -> str | None:
    """Return the token file named on the command line or in the environment."""
    return options.get("--token-file") or environ.get(FILE_VARIABLE, b"").decode("utf-8", "surrogateescape") or None


def platform_secret(platform: str, options: Options, environ: Environ) -> bytes | None:
    """Return a secret that only this job or pod has, or None."""
    if platform == GITHUB:
        return environ.get(GITHUB_SECRET) or None
    if platform == GITLAB:
        return environ.get(options.get("--token-variable", GITLAB_VARIABLE).encode()) or None
    path = named_token_file(options, environ)
    if path is None and platform == KUBERNETES:
        path = PROJECTED_TOKEN if _exists(PROJECTED_TOKEN) else POD_TOKEN
    return None if path is None else _token_in(path)


def cache_entry(options: Options, environ: Environ) -> tuple[str, bytes] | None:
    """Return the file name for *options* and the secret that seals it. None if nothing is cached."""
    platform = platform_of(options, environ)
    secret = None if platform is None else platform_secret(platform, options, environ)
    if platform is None or secret is None:
        return None
    server = options["--server"].rstrip("/")
    parts = [server, platform, options.get("--audience", server)]
    parts += [options.get(option, "") for option in ("--can", "--scope", "--ca")]
    joined = b"".join(b"%d:%b" % (len(part), part) for part in [text.encode("utf-8", "replace") for text in parts])
    return f"workload+{platform}+{blake2b(joined, key=_key(secret, b'name'), digest_size=20).hexdigest()}", secret


def _exists(path: str) -> bool:
    try:
        system.stat(path)
    except OSError:
        return False
    return True


def _token_in(path: str) -> bytes | None:
    """Read a token that the platform wrote. The file may belong to another user and be a symbolic link."""
    try:
        descriptor = system.open(path, system.O_RDONLY | system.O_CLOEXEC | system.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return system.read(descriptor, LARGEST).strip() or None
    except OSError:
        return None
    finally:
        system.close(descriptor)


# --- sealing: a stream of keyed BLAKE2b blocks, and a tag over all of it ---


def seal(content: bytes, secret: bytes, *, renew_at: int, nonce: bytes) -> bytes:
    """Encrypt and authenticate *content* with *secret*. A *nonce* of 16 random bytes must never be reused."""
    head = b"%b%d\n" % (_HEAD, renew_at)
    body = _stream(content, _key(secret, b"seal"), nonce)
    return head + nonce + _tag(secret, head + nonce + body) + body


def unseal(sealed: bytes, secret: bytes) -> bytes | None:
    """Decrypt *sealed*. None if it was sealed with another secret or modified."""
    head, newline, rest = sealed.partition(b"\n")
    nonce, tag, body = rest[:_NONCE], rest[_NONCE : _NONCE + _TAG], rest[_NONCE + _TAG :]
    # Not in constant time: an attacker who can try tags here can also read our memory.
    if not head.startswith(_HEAD) or len(tag) != _TAG or _tag(secret, head + newline + nonce + body) != tag:
        return None
    return _stream(body, _key(secret, b"seal"), nonce)


def renewal_time(sealed: bytes) -> int | None:
    """Return the time after which a file is useless. Stored unencrypted so that any job can clean up."""
    head, newline, _ = sealed.partition(b"\n")
    digits = head[len(_HEAD) :]
    return int(digits) if newline and head.startswith(_HEAD) and digits.isdigit() and len(digits) < 20 else None


def _key(secret: bytes, purpose: bytes) -> bytes:
    return blake2b(secret, digest_size=_BLOCK, person=b"ostiary" + purpose).digest()


def _tag(secret: bytes, data: bytes) -> bytes:
    return blake2b(data, key=_key(secret, b"tag"), digest_size=_TAG).digest()


def _stream(data: bytes, key: bytes, nonce: bytes) -> bytes:
    count = -(-len(data) // _BLOCK)
    blocks = [blake2b(number.to_bytes(8, "big"), key=key, salt=nonce).digest() for number in range(count)]
    stream = b"".join(blocks)[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
