"""A real KDC for tests: MIT's krb5kdc as an ordinary process, with a realm, a database and a port of its own.

    with running_kdc(folder) as kdc:
        kdc.add_person("alice"); kdc.add_service("HTTP/localhost")
        keytab = kdc.keytab("HTTP/localhost")
        cache = kdc.kinit("alice")
        header = kdc.negotiate(cache, "localhost")

Nothing of the machine is read or written: every program gets the krb5.conf in the folder by its environment.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.ports import free_port

REALM = "EXAMPLE.TEST"
PASSWORD = "typed-at-kinit"
PROGRAMS = ("krb5kdc", "kadmin.local", "kdb5_util", "kinit")

_CLIENT = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {realm}
"""
_SERVER = """\
[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
 }}
"""
# What a client does, in a process of its own: the clock and the environment are those of the process.
_TOKEN = """\
import sys, gssapi
from gssapi.raw import ChannelBindings, RequirementFlag
host, mechanism, binding = sys.argv[1:]
context = gssapi.SecurityContext(
    name=gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service), mech=gssapi.OID.from_int_seq(mechanism),
    flags=[RequirementFlag.mutual_authentication], usage="initiate",
    channel_bindings=ChannelBindings(application_data=bytes.fromhex(binding)) if binding else None)
sys.stdout.buffer.write(context.step())
"""
SPNEGO, KRB5 = "1.3.6.1.5.5.2", "1.2.840.113554.1.2.2"


@dataclass(frozen=True)
class Kdc:
    """A running KDC. With *shift* it and its clients live at another time, as ``faketime`` writes it."""

    folder: Path
    port: int
    shift: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.folder / f"krb5-{self.port}.conf"),
            "KRB5_KDC_PROFILE": str(self.folder / f"kdc-{self.port}.conf"),
            # No cache of whoever runs the tests.
            "KRB5CCNAME": f"FILE:{self.folder}/nobody",
        }

    def add_person(self, name: str) -> None:
        self._administer(f"addprinc -pw {PASSWORD} {name}")

    def add_service(self, *names: str) -> None:
        for name in names:
            self._administer(f"addprinc -randkey {name}")

    def change_keys(self, name: str) -> None:
        """Another key for a service: what its keytabs hold is the key before."""
        self._administer(f"cpw -randkey {name}")

    def disable(self, name: str) -> None:
        self._administer(f"modprinc -allow_tix {name}")

    def enable(self, name: str) -> None:
        self._administer(f"modprinc +allow_tix {name}")

    def keytab(self, *services: str, file: str = "service.keytab") -> Path:
        path = self.folder / file
        for service in services:
            # Without another key: keytabs that were made before stay right.
            self._administer(f"ktadd -norandkey -k {path} {service}")
        return path

    def kinit(self, name: str, *options: str, file: str = "") -> str:
        """Signs *name* in, with a password once; the ticket cache that it is kept in."""
        cache = f"FILE:{self.folder}/cache-{file or name.replace('/', '-')}-{self.port}"
        self.run("kinit", *options, name, cache=cache, typed=f"{PASSWORD}\n")
        return cache

    def negotiate(self, cache: str, host: str, *, mechanism: str = SPNEGO, binding: bytes = b"") -> str:
        """An ``Authorization`` header with a ticket for a service of *host*."""
        token = self.run(sys.executable, "-c", _TOKEN, host, mechanism, binding.hex(), cache=cache)
        return f"Negotiate {b64encode(token).decode()}"

    def run(self, *command: str, cache: str = "", typed: str = "") -> bytes:
        environment = {**os.environ, **self.environment, **({"KRB5CCNAME": cache} if cache else {})}
        done = subprocess.run(
            [*self._clock(), *command], input=typed.encode(), capture_output=True, env=environment, timeout=30
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    @contextmanager
    def at_another_time(self, shift: str) -> Iterator[Kdc]:
        """Another KDC for the same people, whose clock differs, and whose clients' does."""
        with replace(self, port=free_port(), shift=shift)._running() as other:
            yield other

    def _clock(self) -> list[str]:
        return ["faketime", "-f", self.shift] if self.shift else []

    def _administer(self, request: str) -> None:
        self.run("kadmin.local", "-r", REALM, "-q", request)

    @contextmanager
    def _running(self) -> Iterator[Kdc]:
        values = {"folder": self.folder, "port": self.port, "realm": REALM}
        (self.folder / f"krb5-{self.port}.conf").write_text(_CLIENT.format(**values))
        (self.folder / f"kdc-{self.port}.conf").write_text(_SERVER.format(**values))
        if not (self.folder / "stash").exists():
            self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-the-database")
        environment = {**os.environ, **self.environment}
        log = (self.folder / f"log-{self.port}").open("wb")
        command = [*self._clock(), "krb5kdc", "-n", "-r", REALM]
        with log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
            try:
                _wait(self.port, process)
                yield self
            finally:
                process.terminate()
                process.wait(timeout=10)


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    with Kdc(folder, free_port())._running() as kdc:
        yield kdc


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the KDC does not answer")
