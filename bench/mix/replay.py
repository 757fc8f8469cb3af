"""The recorded mix through plain nginx, other proxies and the gateway, plain and with TLS on both sides.

All requests of the recordings but watches, in their order, again and again: the tokens are those of the load, what
differs from time to time in reality is new each time, and the backend's answers are as long as the recorded ones.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.beside import load
from bench.beside.everyone import everyone
from bench.beside.pairs import Pairs, Turns, compare, load_row
from bench.beside.with_us import US
from bench.mix.recording import NEW, Recorded, read_all
from bench.plots import bar_plot
from bench.table import Row

PLAN = {**dict.fromkeys(US, Turns(rounds=4, seconds=2)), "": Turns(rounds=2, seconds=1)}
# Each lap of the recordings is another person, another dashboard, another cluster's controllers.
LAPS = 4
# A person fetches the few documents of OpenAPI that are longer once a day, and then they are cached.
LONGEST_ANSWER = 256 * 1024


def run() -> Iterator[Row]:
    recorded = read_all()
    requests = [request for request in recorded if not request.watches and request.answer <= LONGEST_ANSWER]
    yield Row("the mix", _description(recorded, requests))
    measured: dict[str, list[Pairs]] = {}
    for secure in (False, True):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with everyone(
                folder,
                secure=secure,
                users=LAPS * len({request.client for request in requests}),
                methods=tuple(sorted({request.method for request in requests})),
                locations=_locations(folder, requests),
            ) as candidates:
                what = f"recorded mix, {'TLS on both sides' if secure else 'plain'}"
                files = {
                    kind: load.write_requests(folder / f"mix-{kind}", _texts(requests, tokens))
                    for kind, tokens in candidates.tokens.items()
                }
                pairs = compare(candidates.nginx, candidates.others, candidates.site, files, what=what, plan=PLAN)
                yield from load_row(pairs, what)
                yield from (each.row(what) for each in pairs)
                yield from candidates.missing_rows(what)
                measured[what.removeprefix("recorded mix, ")] = pairs
    groups = {what: {each.name: each.ratio("cpu_us") for each in pairs} for what, pairs in measured.items()}
    title = "CPU for a request of the recorded mix, beside plain nginx"
    bar_plot(Path("mix-cpu.svg"), title, "times plain nginx", groups)


def _description(recorded: Sequence[Recorded], replayed: Sequence[Recorded]) -> str:
    shares = ", ".join(f"{number} of {client}" for client, number in Counter(each.client for each in replayed).items())
    new = sum(NEW in _head(request, "") for request in replayed)
    watches = sum(request.watches for request in recorded)
    return (
        f"{len(replayed)} requests: {shares}; {new} have something new each time; "
        f"left out: {watches} watches, {len(recorded) - watches - len(replayed)} documents of OpenAPI"
    )


def _texts(requests: Sequence[Recorded], tokens: Sequence[str]) -> Iterator[str]:
    clients = sorted({request.client for request in requests})
    for lap in range(LAPS):
        for request in requests:
            token = tokens[(lap * len(clients) + clients.index(request.client)) % len(tokens)]
            body = request.body or "x" * request.length
            yield _head(request, token).replace(NEW, load.NEW) + body


def _head(request: Recorded, token: str) -> str:
    lines = [f"{request.method} {request.target} HTTP/1.1", "Host: gateway.test"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    lines += [f"Authorization: Bearer {token}"]
    if request.length or request.method in ("POST", "PUT", "PATCH"):
        lines += [f"Content-Length: {request.length}"]
    return "\r\n".join([*lines, "", ""])


def _locations(folder: Path, requests: Sequence[Recorded]) -> str:
    """A backend whose answers are as long as the recorded ones were, by path, up to the next power of two."""
    files = folder / "answers"
    files.mkdir()
    # A worker of nginx that root started is somebody else.
    folder.chmod(0o755)
    answers: dict[str, list[int]] = {}
    for request in requests:
        answers.setdefault(request.path, []).append(request.answer)
    locations = [f"root {files}; default_type application/json; open_file_cache max=100;", "location / { return 404; }"]
    # Where kube-rbac-proxy is asked first.
    locations.append('location = / { return 200 "{}"; }')
    for path, sizes in answers.items():
        size = 1 << max(8, int(statistics.median(sizes)).bit_length())
        (files / str(size)).write_text("x" * size)
        pattern = re.escape(path).replace(re.escape(NEW), "[0-9]+")
        rule = f'if ($request_method !~ "^GET$") {{ rewrite ^ /changed last; }} try_files /{size} =404;'
        locations.append(f'location ~ "^{pattern}$" {{ {rule} }}')
    locations.append(f'location = /changed {{ return 200 "{"x" * 1024}"; }}')
    return "\n".join(locations)
