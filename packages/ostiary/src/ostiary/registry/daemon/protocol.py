"""The protocol between the daemon and its clients: one request per connection.

    request        ostiary-registry 1 <verb> <length> <length> <length>\\n  and the three texts
    immediately    ostiary-registry 1 asked\\n                               or: cannot <length>\\n and the reason
    then           ostiary-registry 1 answer <exit code> <length> <length>\\n  and what goes to stdout and stderr

The daemon responds with the finished output, so that the program need not parse or format anything. It sends ``asked``
before it runs a provider: without it the program assumes that there is no daemon, and runs the provider itself.

Imports nothing, because it is loaded on every pull.
"""

MAGIC = b"ostiary-registry 1 "
# The verbs and their three texts.
GET, ERASE = b"docker-get", b"docker-erase"  # configuration, directory of executables, server
PROVIDE = b"provide"  # configuration, name of the program, request
STATUS, RELOAD = b"status", b"reload"  # none
VERBS = (GET, ERASE, PROVIDE, STATUS, RELOAD)

LARGEST_TEXT = (1 << 20) + 1
LARGEST_ANSWER = 8 << 20
ASKED = MAGIC + b"asked\n"


def question(verb: bytes, *texts: bytes) -> bytes:
    """Encode a request: *verb* with up to three texts."""
    three = (*texts, b"", b"", b"")[:3]
    lengths = " ".join(str(len(text)) for text in three)
    return MAGIC + verb + b" " + lengths.encode() + b"\n" + b"".join(three)


def question_head(line: bytes) -> tuple[bytes, list[int]] | None:
    """Parse the first line of a request: the verb and the lengths; None if it is invalid or of another version."""
    words = line.removeprefix(MAGIC).split()
    if not line.startswith(MAGIC) or len(words) != 4 or words[0] not in VERBS:
        return None
    lengths = _numbers(words[1:])
    return (words[0], lengths) if lengths and max(lengths) <= LARGEST_TEXT else None


def answer(code: int, stdout: bytes, stderr: bytes = b"") -> bytes:
    return MAGIC + f"answer {code} {len(stdout)} {len(stderr)}\n".encode() + stdout + stderr


def refusal(reason: str) -> bytes:
    text = reason.encode()
    return MAGIC + f"cannot {len(text)}\n".encode() + text


def read_answer(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Parse what follows ``asked``: exit code, stdout and stderr; None if it is incomplete or invalid."""
    head, end, rest = data.partition(b"\n")
    words = head.removeprefix(MAGIC).split()
    if not head.startswith(MAGIC) or not end or len(words) != 4 or words[0] != b"answer":
        return None
    numbers = _numbers(words[1:])
    if not numbers or len(rest) != numbers[1] + numbers[2]:
        return None
    return numbers[0], rest[: numbers[1]], rest[numbers[1] :]


def _numbers(words: list[bytes]) -> list[int] | None:
    # `isdigit` alone would accept any length, and `int` is slow for very long numbers.
    return [int(word) for word in words] if all(word.isdigit() and len(word) < 9 for word in words) else None
