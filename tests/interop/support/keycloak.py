"""A real Keycloak over TLS, started from what ``scripts/interop-keycloak`` has made, with a copy of its database.

    with running_keycloak(folder, ca) as keycloak:
        realm = keycloak.realm("acme")
        alice = realm.add_user("alice", "developers")
        secret = realm.add_client("gateway", "https://localhost:8443/auth/acme/provider")

What an administrator does goes through the admin API, and what a person does in a browser is done by `person.Person`.
"""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.interop.support.process import Server
from tests.interop.support.programs import KEYCLOAK, listed, reason_not_built
from tests.support.ports import free_port

SECONDS = 60.0
ADMIN = "admin"
PASSWORD = "typed at Keycloak"
# What is compiled once more is for servers that run for days. Bounded, since others run beside it.
_JAVA = "-Xms64m -Xmx512m -XX:MaxMetaspaceSize=320m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Keycloak:
    """A running one."""

    url: str
    trust: ssl.SSLContext
    http: httpx.Client

    def realm(self, name: str, **settings: Any) -> Realm:
        """A new realm. Access tokens are short-lived, as the defaults have it."""
        self.admin("POST", "", json={"realm": name, "enabled": True, **settings})
        return Realm(self, name)

    def admin(self, method: str, path: str, *, kind: str = "application/json", **content: Any) -> httpx.Response:
        """Ask the admin API, below ``/admin/realms``."""
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": kind}
        answer = self.http.request(method, f"/admin/realms{path}", headers=headers, **content)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def _token(self) -> str:
        # Asked for anew each time: they live for a minute.
        form = {"grant_type": "password", "client_id": "admin-cli", "username": ADMIN, "password": ADMIN}
        answer = self.http.post("/realms/master/protocol/openid-connect/token", data=form)
        assert answer.is_success, answer.text
        return str(answer.json()["access_token"])


@dataclass(frozen=True)
class Realm:
    keycloak: Keycloak
    name: str

    @property
    def issuer(self) -> str:
        return f"{self.keycloak.url}/realms/{self.name}"

    def admin(self, method: str, path: str, **content: Any) -> httpx.Response:
        return self.keycloak.admin(method, f"/{self.name}{path}", **content)

    # --- people ---

    def add_user(self, name: str, *groups: str) -> str:
        """Somebody with `PASSWORD`, in *groups*, which are made if need be; gives the id."""
        for group in groups:
            if group not in self.groups():
                self.admin("POST", "/groups", json={"name": group})
        person = {
            "username": name,
            "enabled": True,
            "email": f"{name}@example.com",
            "emailVerified": True,
            # Without these Keycloak asks for them at the first sign-in.
            "firstName": name.title(),
            "lastName": "Example",
            "groups": [f"/{group}" for group in groups],
            "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
        }
        self.admin("POST", "/users", json=person)
        return self.user(name)

    def user(self, name: str) -> str:
        (found,) = self.admin("GET", "/users", params={"username": name, "exact": "true"}).json()
        return str(found["id"])

    def groups(self) -> dict[str, str]:
        return {group["name"]: group["id"] for group in self.admin("GET", "/groups").json()}

    def leave(self, user: str, group: str) -> None:
        self.admin("DELETE", f"/users/{user}/groups/{self.groups()[group]}")

    def enable(self, user: str, *, enabled: bool) -> None:
        self.admin("PUT", f"/users/{user}", json={"enabled": enabled})

    def sign_out(self, user: str) -> None:
        """An administrator ends all sessions of *user*."""
        self.admin("POST", f"/users/{user}/logout")

    # --- how people sign in ---

    def ask_by_level(self) -> None:
        """Two levels of authentication: name and password, and for the second one the password once more.

        The second password form stands for a second factor: what counts is that Keycloak asks, and says so.
        """
        flows = "/authentication/flows"
        self.admin("POST", flows, json={"alias": "levels", "providerId": "basic-flow", "topLevel": True})
        self._add_step("levels", "auth-cookie")
        self._add_steps_below("levels", "level-forms")
        for level, form in enumerate(("auth-username-password-form", "auth-password-form"), start=1):
            self._add_steps_below("level-forms", f"level-{level}")
            self._add_step(f"level-{level}", "conditional-level-of-authentication")
            self._add_step(f"level-{level}", form)
        level = 0
        for step in self.admin("GET", f"{flows}/levels/executions").json():
            name, provider = step["displayName"], step.get("providerId", "")
            requirement = "ALTERNATIVE" if provider == "auth-cookie" or name == "level-forms" else "REQUIRED"
            step["requirement"] = "CONDITIONAL" if name in ("level-1", "level-2") else requirement
            self.admin("PUT", f"{flows}/levels/executions", json=step)
            if provider.startswith("conditional-"):
                level += 1
                config = {"loa-condition-level": str(level), "loa-max-age": "3600"}
                path = f"/authentication/executions/{step['id']}/config"
                self.admin("POST", path, json={"alias": f"level-{level}", "config": config})
        self.admin("PUT", "", json={"browserFlow": "levels"})

    def _add_step(self, flow: str, provider: str) -> None:
        self.admin("POST", f"/authentication/flows/{flow}/executions/execution", json={"provider": provider})

    def _add_steps_below(self, flow: str, name: str) -> None:
        content = {"alias": name, "type": "basic-flow", "provider": "", "description": ""}
        self.admin("POST", f"/authentication/flows/{flow}/executions/flow", json=content)

    # --- clients ---

    def add_client(self, name: str, *redirects: str, **settings: Any) -> str:
        """A confidential client of the authorization code flow, whose ID tokens have the groups; gives its secret."""
        secret = f"secret-of-{name}"
        groups = {
            "name": "groups",
            "protocol": "openid-connect",
            "protocolMapper": "oidc-group-membership-mapper",
            "config": {"claim.name": "groups", "full.path": "false", "id.token.claim": "true"},
        }
        client = {
            "clientId": name,
            "protocol": "openid-connect",
            "secret": secret,
            "redirectUris": list(redirects),
            "standardFlowEnabled": True,
            "protocolMappers": [groups],
            **settings,
        }
        self.admin("POST", "/clients", json=client)
        return secret


# --- the process ---


@contextmanager
def running_keycloak(folder: Path, ca: trustme.CA) -> Iterator[Keycloak]:
    """Skips the test, and says why, where this machine has no Keycloak."""
    program = listed()[KEYCLOAK]["quarkus-run.jar"]
    if not program.exists():
        pytest.skip(reason_not_built(KEYCLOAK))
    home, port = _home(folder, program.parent.parent), free_port()
    url = f"https://localhost:{port}"
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf = ca.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    (folder / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    options: Mapping[str, object] = {
        "cache": "local",
        "hostname": url,
        "http-host": "127.0.0.1",
        "https-port": port,
        "https-certificate-file": folder / "tls.pem",
        "https-certificate-key-file": folder / "tls.key",
        # It calls the gateway (logouts), and a directory.
        "truststore-paths": folder / "ca.pem",
        "log-level": "info,org.keycloak.events:debug",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(trust)
    # Not by kc.sh, whose child it would be: then it would not end with us.
    properties = [f"-Dkc.home.dir={home}", "-Djava.util.logging.manager=org.jboss.logmanager.LogManager"]
    main = ["-cp", str(program), "io.quarkus.bootstrap.runner.QuarkusEntryPoint"]
    command: list[str | Path] = ["java", *_JAVA.split(), *properties, *main, "start", "--optimized", *words]
    with (
        Server(command, log=folder / "log") as server,
        httpx.Client(base_url=url, verify=trust, timeout=SECONDS, trust_env=False) as http,
    ):
        server.wait_until(lambda: _answers(http))
        yield Keycloak(url, trust, http)


def _home(folder: Path, made: Path) -> Path:
    """A folder with its own data. What was compiled is shared."""
    home = folder / "home"
    home.mkdir()
    for name in ("conf", "data"):
        shutil.copytree(made / name, home / name)
    for name in ("lib", "providers", "themes"):
        os.symlink(made / name, home / name)
    return home


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/realms/master").is_success
    except httpx.TransportError:
        return False
