"""A real directory for tests: OpenLDAP's slapd as an ordinary process, with LDAP (StartTLS) and LDAPS on loopback.

People have the password `PASSWORD`, and what each is there for stands in `PEOPLE` and `GROUPS`. Nothing writes to the
directory, so all tests of a module share one.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from ostiary_gateway.providers.ldap.settings import GroupSearch, LdapServer, LdapSettings, SearchAccount, UserSearch
from tests.support.ports import free_port

SUFFIX = "dc=example,dc=com"
PEOPLE_BASE = f"ou=people,{SUFFIX}"
GROUPS_BASE = f"ou=groups,{SUFFIX}"
ACCOUNT = f"cn=gateway,{SUFFIX}"
ACCOUNT_PASSWORD = "search-and-find"
ADMIN_PASSWORD = "changes-everything"
PASSWORD = "correct horse"

PEOPLE: dict[str, Mapping[str, str]] = {
    "alice": {"mail": "alice@example.com"},
    "bob": {"mail": "shared@example.com"},
    "carol": {"mail": "shared@example.com"},
    "dave": {"shadowExpire": "1"},
    "erin": {"shadowExpire": "999999"},
    "o'neil, (jr)*": {"mail": "oneil@example.com"},
}
# platform is in staff, which is in everybody, which is in staff again.
GROUPS: dict[str, tuple[str, ...]] = {
    "developers": ("uid=alice",),
    "operators": ("uid=bob",),
    "platform": ("uid=alice", "uid=bob"),
    "staff": ("cn=platform", "cn=everybody"),
    "everybody": ("cn=staff",),
    "odd )(cn=*": ("uid=alice",),
}

_CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCACertificateFile {folder}/ca.pem
TLSCertificateFile {folder}/tls.pem
TLSCertificateKeyFile {folder}/key.pem
TLSVerifyClient never
database mdb
suffix "{suffix}"
directory {folder}/data
rootdn "cn=admin,{suffix}"
rootpw "{admin_password}"
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{account}" read by self read by * none
"""


@dataclass(frozen=True)
class Slapd:
    """A running server. `log` tells what it was asked."""

    folder: Path
    port: int
    tls_port: int

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ldap(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def ldaps(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"

    @property
    def account(self) -> SearchAccount:
        return SearchAccount(ACCOUNT, self.folder / "password")

    def settings(
        self,
        *,
        server: LdapServer | None = None,
        users: UserSearch | None = None,
        groups: GroupSearch | None = None,
    ) -> LdapSettings:
        return LdapSettings(
            server or LdapServer(self.ldaps, ca=self.ca),
            users or UserSearch(base_dn=PEOPLE_BASE),
            self.account,
            groups or GroupSearch(GROUPS_BASE),
        )

    def identity(self, password_file: str) -> dict[str, object]:
        """An entry below ``identity`` of a gateway's configuration; the file has `ACCOUNT_PASSWORD`."""
        return {
            "name": "staff",
            "type": "ldap",
            "url": self.ldaps,
            "ca": str(self.ca),
            "bindDN": ACCOUNT,
            "bindPasswordFile": password_file,
            "userSearch": {"baseDN": PEOPLE_BASE},
            "groupSearch": {"baseDN": GROUPS_BASE},
        }

    def disable(self, uid: str) -> None:
        """The account has expired long ago, as an administrator writes it."""
        change = f"dn: uid={uid},{PEOPLE_BASE}\nchangetype: modify\nreplace: shadowExpire\nshadowExpire: 1\n"
        command = ["ldapmodify", "-x", "-H", self.ldap, "-D", f"cn=admin,{SUFFIX}", "-w", ADMIN_PASSWORD]
        subprocess.run(command, input=change, text=True, check=True, capture_output=True)

    def asked(self) -> str:
        """What it has written down. Binds and searches are there before their answer, UNBIND and RESULT later."""
        return (self.folder / "log").read_text(errors="replace")


@contextmanager
def slapd(folder: Path, ca: trustme.CA) -> Iterator[Slapd]:
    server = Slapd(folder, free_port(), free_port())
    _write(server, ca)
    config = str(folder / "slapd.conf")
    subprocess.run(["slapadd", "-f", config, "-l", str(folder / "data.ldif")], check=True, capture_output=True)
    urls = f"ldap://127.0.0.1:{server.port} ldaps://127.0.0.1:{server.tls_port}"
    # 256 is the level that tells each bind and search in a line.
    command = ["slapd", "-d", "256", "-h", urls, "-f", config]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(server.port, process)
            _wait(server.tls_port, process)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=10)


def _write(server: Slapd, ca: trustme.CA) -> None:
    folder = server.folder
    (folder / "data").mkdir()
    leaf = ca.issue_cert("127.0.0.1", "directory.example.com")
    (folder / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    ca.cert_pem.write_to_path(str(server.ca))
    (folder / "password").write_text(ACCOUNT_PASSWORD + "\n")
    names = {"suffix": SUFFIX, "account": ACCOUNT, "admin_password": ADMIN_PASSWORD}
    (folder / "slapd.conf").write_text(_CONFIG.format(folder=folder, **names))
    (folder / "data.ldif").write_text("\n".join(_entries()))


def _entries() -> Iterator[str]:
    yield _entry(SUFFIX, objectClass=("dcObject", "organization"), dc="example", o="Example")
    for unit in ("people", "groups"):
        yield _entry(f"ou={unit},{SUFFIX}", objectClass="organizationalUnit", ou=unit)
    account = ("organizationalRole", "simpleSecurityObject")
    yield _entry(ACCOUNT, objectClass=account, cn="gateway", userPassword=ACCOUNT_PASSWORD)
    for uid, also in PEOPLE.items():
        dn = f"uid={uid.replace(',', chr(92) + ',')},{PEOPLE_BASE}"
        person = ("inetOrgPerson", "shadowAccount")
        yield _entry(dn, objectClass=person, uid=uid, cn=uid, sn=uid, userPassword=PASSWORD, **also)
    for name, members in GROUPS.items():
        dns = tuple(f"{member},{GROUPS_BASE if member.startswith('cn=') else PEOPLE_BASE}" for member in members)
        yield _entry(f"cn={name},{GROUPS_BASE}", objectClass="groupOfNames", cn=name, member=dns)


def _entry(dn: str, **attributes: str | tuple[str, ...]) -> str:
    rows = [f"dn: {dn}"]
    for name, values in attributes.items():
        rows += [f"{name}: {value}" for value in ((values,) if isinstance(values, str) else values)]
    return "\n".join(rows) + "\n"


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("slapd does not answer")
