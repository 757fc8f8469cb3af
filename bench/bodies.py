"""Bodies of 2 kB and of 1 MiB, up and down, through plain nginx, other proxies and the gateway.

No side keeps a body in a file. As in `bench.gateway`, one core is for what is measured and one for the load and the
backend.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.beside.everyone import Everyone, everyone
from bench.beside.load import write_requests
from bench.beside.pairs import Pairs, Turns, compare, load_row
from bench.beside.plain import ENVOY, HAPROXY
from bench.beside.with_us import US
from bench.heads import request_text
from bench.plots import bar_plot
from bench.table import Row

KILOBYTES, MEBIBYTE = 2_000, 1 << 20
PLAN = {**dict.fromkeys(US, Turns(rounds=3, seconds=2)), "": Turns(rounds=2, seconds=1)}
# As many as keep a core busy; 64 bodies of a mebibyte would only wait for each other.
CONNECTIONS = {KILOBYTES: 64, MEBIBYTE: 8}
TOKENS = 10
_OBJECTS = "/api/v1/namespaces/team-1/configmaps"
_CASES = {
    "2 kB down": ("GET", KILOBYTES),
    "1 MiB down": ("GET", MEBIBYTE),
    "2 kB up": ("POST", KILOBYTES),
    "1 MiB up": ("PUT", MEBIBYTE),
}


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with everyone(folder, secure=False, wanted=(HAPROXY, ENVOY), locations=_locations(folder)) as candidates:
            measured = {}
            for what, (method, size) in _CASES.items():
                measured[what] = _compared(candidates, what, method, size)
                yield from _rows(measured[what], what, size)
            yield from candidates.missing_rows("bodies")
    _draw(measured)


def _locations(folder: Path) -> str:
    """A backend that has two objects, and takes any body."""
    files = folder / "objects"
    files.mkdir()
    # A worker of nginx that root started is somebody else.
    folder.chmod(0o755)
    for size in (KILOBYTES, MEBIBYTE):
        (files / f"size-{size}").write_text("x" * size)
    objects = f"location ~ /(size-[0-9]+)$ {{ root {files}; try_files /$1 =404; default_type application/json; }}"
    # What only returns does not wait for a large body, and closes the connection. What passes the question on, without
    # the body, has read it.
    upload = (
        f"location {_OBJECTS}/upload {{ client_body_buffer_size 2m; proxy_pass_request_body off; proxy_method GET; "
        'proxy_set_header Content-Length ""; proxy_pass http://127.0.0.1:$server_port/read; }'
    )
    return f'{objects} {upload} location / {{ default_type application/json; return 200 "{{}}"; }}'


def _compared(candidates: Everyone, what: str, method: str, size: int) -> list[Pairs]:
    target = _OBJECTS if method == "POST" else f"{_OBJECTS}/{f'size-{size}' if method == 'GET' else 'upload'}"
    body = "" if method == "GET" else "x" * size
    texts = (request_text(f"{method} {target} HTTP/1.1", token, body=body) for token in candidates.tokens[""][:TOKENS])
    requests = {"": write_requests(candidates.site.folder / f"{method}-{size}", texts)}
    return compare(
        candidates.nginx,
        candidates.others,
        candidates.site,
        requests,
        what=what,
        plan=PLAN,
        connections=CONNECTIONS[size],
    )


def _rows(pairs: Sequence[Pairs], what: str, size: int) -> Iterator[Row]:
    yield from load_row(pairs, what)
    for each in pairs:
        row = each.row(what)
        megabytes = each.median("per_second") * size / 1e6
        yield Row(row.what, f"{row.measured}, {megabytes:,.0f} MB / s", row.promised)


def _draw(measured: dict[str, list[Pairs]]) -> None:
    groups = {what: {each.name: each.ratio("cpu_us") for each in pairs} for what, pairs in measured.items()}
    title = "CPU for a request with a body, beside plain nginx"
    bar_plot(Path("bodies-cpu.svg"), title, "times plain nginx", groups, promise=None)
