"""Who must not get through ``ostiary connect``: other users of the machine, web pages, and whoever kept a token."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.connect_desk import ConnectDesk, certificate_user, connect_desk
from tests.support.tiers import missing

PODS = "/api/v1/namespaces/default/pods"
PYTHON = "/usr/bin/python3"
AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
# Says what happened to somebody who connects to a Unix socket and asks for a token.
ASK = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(30)
try:
    connection.connect(sys.argv[1])
    connection.sendall(b"token v1 test@ostiary\\n")
    print(connection.recv(65536))
except OSError as error:
    print(type(error).__name__)
"""
# Somebody else's process at a socket, who reads whatever it is told.
LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    print(connection.recv(65536), flush=True)
"""


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_pod("default", "web")
        yield cluster


@pytest.fixture(scope="module")
def desk_of_all(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectDesk]:
    """One for all tests, each of which leaves it as it was: with its context, and perhaps without its process."""
    folder = tmp_path_factory.mktemp("desk")
    with connect_desk(folder, cluster, certificate_user(cluster, folder)) as desk:
        desk.connect()
        yield desk


@pytest.fixture
def desk(desk_of_all: ConnectDesk, cluster: Cluster) -> ConnectDesk:
    cluster.requests.clear()
    return desk_of_all


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_requests_without_the_token_and_from_browsers_reach_nothing(cluster: Cluster, desk: ConnectDesk) -> None:
    bearer = f"Authorization: Bearer {desk.token()}"
    port = desk.port()
    assert status_of(desk.get(PODS)) == 401
    assert status_of(desk.get(PODS, "Authorization: Bearer " + "A" * 43)) == 401
    assert status_of(desk.get(PODS, "Authorization: Basic QTpC")) == 401
    assert status_of(desk.get(PODS, bearer, bearer)) == 400
    # DNS rebinding: the page's own name leads to loopback.
    for host in ("evil.example", f"evil.example:{port}", f"localhost:{port}", "127.0.0.1"):
        assert status_of(desk.get(PODS, bearer, host=host)) == 421
    # A page of another site, which the browser tells of; with the token as well, wherever it got that from.
    for line in ("Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none"):
        assert status_of(desk.get(PODS, bearer, line)) == 403
    preflight = desk.get(PODS, "Origin: https://evil.example", "Access-Control-Request-Method: GET", method="OPTIONS")
    assert status_of(preflight) == 403
    assert b"access-control" not in preflight.lower()
    assert status_of(desk.get("http://metadata.internal/secret", bearer)) == 400
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(plain.recv(65536)) == 400
    assert cluster.requests == []

    answer = desk.get(PODS, bearer, f"Origin: https://127.0.0.1:{port}")
    assert status_of(answer) == 200
    assert "a request was refused" in desk.log


def test_what_a_client_claims_is_replaced(cluster: Cluster, desk: ConnectDesk) -> None:
    claims = ("X-Remote-User: admin", "X-Remote-Group: system:masters", "X-Forwarded-For: 10.0.0.1", "Audit-Id: mine")
    answer = desk.get(PODS, f"Authorization: Bearer {desk.token()}", *claims)
    assert status_of(answer) == 200
    (record,) = cluster.requests
    assert record.user is not None
    assert record.user.username == "jane"
    assert record.value("Host") == f"localhost:{cluster.port}"
    for name in ("Authorization", "X-Remote-User", "X-Remote-Group", "X-Forwarded-For"):
        assert record.values(name) == []
    assert record.value("Audit-Id") not in (None, "mine")


def test_a_token_is_good_at_one_context_of_one_process(cluster: Cluster, desk: ConnectDesk) -> None:
    desk.connect("test", "--name", "second")
    stolen = f"Authorization: Bearer {desk.token()}"
    assert status_of(desk.get(PODS, stolen)) == 200
    other = desk.port("second")
    head = f"GET {PODS} HTTP/1.1\nHost: 127.0.0.1:{other}\nConnection: close\n{stolen}"
    assert status_of(desk.send(head, name="second")) == 401
    desk.connect("--stop")
    with pytest.raises(ConnectionError):
        desk.get(PODS, stolen)
    desk.token()
    assert status_of(desk.get(PODS, stolen)) == 401


def test_nothing_secret_is_written_but_the_key_of_the_listener(desk: ConnectDesk) -> None:
    token = desk.token()
    desk.get(PODS, f"Authorization: Bearer {token}")
    desk.get(PODS, f"Authorization: Bearer x{token}")
    key = (desk.kubeconfig.parent / "key.pem").read_text().splitlines()[1]
    for path in [*desk.home.rglob("*"), desk.kubeconfig]:
        if path.is_file():
            assert token not in path.read_text()
            assert key not in path.read_text()
    assert token not in desk.run("connect", "--status", "-o", "json").stdout
    for path in [desk.socket.parent, *desk.socket.parent.iterdir(), desk.state / "connect.log"]:
        assert path.lstat().st_mode & 0o077 == 0, path
    for record in (desk.state / "connect").iterdir():
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert "PRIVATE KEY" not in desk.kubeconfig.read_text() + desk.log


# --- other users of the machine ---


@contextmanager
def opened_to_all(desk: ConnectDesk) -> Iterator[None]:
    """As if somebody had given away the permissions of the folders and of the socket."""
    modes = {path: path.stat().st_mode for path in (desk.runtime, desk.socket.parent, desk.socket)}
    for path in modes:
        path.chmod(0o777)
    yield
    for path, mode in modes.items():
        path.chmod(mode)


def need_two_users() -> None:
    if os.geteuid() != 0:
        missing("root")
    # Not the interpreter of the tests, which another user may not be able to read.
    if lacking := [program for program in ("setpriv", PYTHON) if shutil.which(program) is None]:
        missing(*lacking)


def as_nobody(*words: str) -> str:
    command = [*AS_NOBODY, PYTHON, "-I", "-c", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_another_user_gets_no_token(desk: ConnectDesk) -> None:
    need_two_users()
    assert as_nobody(ASK, str(desk.socket)) == "PermissionError"
    with opened_to_all(desk):
        assert as_nobody(ASK, str(desk.socket)) in ("b''", "ConnectionResetError", "BrokenPipeError")
        assert "a process of the user 65534 was refused at the socket" in desk.log


def test_a_socket_of_somebody_else_is_told_nothing(desk: ConnectDesk) -> None:
    need_two_users()
    desk.connect("--stop")
    with opened_to_folder(desk), listening_as_nobody(desk) as process:
        desk.socket.parent.chmod(0o700)
        done = desk.run("connect", "token", "test@ostiary")
        assert (done.returncode, done.stdout) == (1, "")
        assert "connect-socket-foreign" in done.stderr
        assert "the process that answers there is another user's" in done.stderr
        assert process.stdout is not None
        assert process.stdout.readline() == "b''\n"


def test_a_folder_of_somebody_else_is_not_used(desk: ConnectDesk) -> None:
    need_two_users()
    desk.connect("--stop")
    os.chown(desk.socket.parent, 65534, 65534)
    for words in (("connect", "token", "test@ostiary"), ("connect", "test"), ("connect", "--status")):
        done = desk.run(*words)
        assert done.returncode == 1
        assert "connect-socket-foreign" in done.stderr
    os.chown(desk.socket.parent, os.geteuid(), os.getegid())


@contextmanager
def opened_to_folder(desk: ConnectDesk) -> Iterator[None]:
    for path in (desk.runtime, desk.socket.parent):
        path.chmod(0o777)
    yield
    desk.socket.parent.chmod(0o700)


@contextmanager
def listening_as_nobody(desk: ConnectDesk) -> Iterator[subprocess.Popen[str]]:
    command = [*AS_NOBODY, PYTHON, "-I", "-c", LISTEN, str(desk.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
    desk.socket.unlink()


def test_a_port_that_somebody_took_gets_no_token(cluster: Cluster, desk: ConnectDesk) -> None:
    """Whoever listens there while the proxy does not run has no key for the certificate that clients demand."""
    desk.connect("--stop")
    port = desk.port()
    with socket.create_server(("127.0.0.1", port)):
        done = desk.run("connect", "token", "test@ostiary")
        assert (done.returncode, done.stdout) == (1, "")
        assert "connect-port-taken" in done.stderr
        # The person makes the context again, and it moves.
        desk.connect()
        assert desk.port() != port
        assert status_of(desk.get(PODS, f"Authorization: Bearer {desk.token()}")) == 200
