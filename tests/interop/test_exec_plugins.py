"""Exec plugins that many people use, built from Go modules, run by our client: kubelogin, aws-iam-authenticator."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

import ostiary
from ostiary import Authenticator, Credential
from tests.interop.support.dex import CLIENT, SECRET, Dex, running_dex
from tests.interop.support.programs import AWS_IAM_AUTHENTICATOR, KUBELOGIN, program_of
from tests.support.plugins import exec_user, write_kubeconfig
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(120)]

# A person in a browser: opens the address, chooses the connector that asks for nothing, and is sent back to kubelogin.
BROWSER = """\
#!{python}
import html, re, ssl, sys
import httpx
trust = ssl.create_default_context(cafile={authority!r})
with httpx.Client(verify=trust, follow_redirects=True, trust_env=False, timeout=60) as http:
    page = http.get(sys.argv[1])
    link = re.search(r'href="([^"]*mock[^"]*)"', page.text)
    if link is not None:
        page = http.get(page.url.join(html.unescape(link[1])))
    assert page.status_code == 200, page.text
with open({opened!r}, "a") as file:
    file.write("opened\\n")
"""


def claims(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    decoded: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return decoded


def _credential(config: Path) -> Credential:
    source = ostiary.connect(config).source
    assert isinstance(source, Authenticator)
    return source.get()


class Person:
    """What kubelogin opens as a browser, and the kubeconfig with it."""

    def __init__(self, folder: Path, ca: trustme.CA, dex: Dex, port: int) -> None:
        self._opened = folder / "opened"
        browser = folder / "browser"
        authority = folder / "ca.pem"
        ca.cert_pem.write_to_path(str(authority))
        browser.write_text(BROWSER.format(python=sys.executable, authority=str(authority), opened=str(self._opened)))
        browser.chmod(0o755)
        user = exec_user(
            program_of(KUBELOGIN, "kubelogin"),
            version="v1beta1",
            args=[
                "get-token",
                f"--oidc-issuer-url={dex.issuer}",
                f"--oidc-client-id={CLIENT}",
                f"--oidc-client-secret={SECRET}",
                "--oidc-extra-scope=email",
                "--oidc-extra-scope=offline_access",
                f"--certificate-authority={authority}",
                f"--listen-address=127.0.0.1:{port}",
                f"--browser-command={browser}",
                f"--token-cache-dir={folder / 'cache'}",
            ],
        )
        self.config = write_kubeconfig(folder / "config", server="https://localhost:1", user=user)

    @property
    def opened(self) -> int:
        return len(self._opened.read_text().splitlines()) if self._opened.exists() else 0


def test_kubelogin_signs_a_person_in_at_dex_and_is_asked_once(tmp_path: Path, ca: trustme.CA) -> None:
    """E72."""
    program_of(KUBELOGIN, "kubelogin")
    port = free_port()
    (tmp_path / "dex").mkdir()
    with running_dex(tmp_path / "dex", ca, f"http://localhost:{port}") as dex:
        person = Person(tmp_path, ca, dex, port)
        credential = _credential(person.config)
        assert credential.token is not None
        assert claims(credential.token.reveal())["iss"] == dex.issuer
        assert credential.expires_at is not None
        assert person.opened == 1
        # Another program: kubelogin has the token in its own cache.
        again = _credential(person.config)
        assert again.token is not None
        assert again.token.reveal() == credential.token.reveal()
        assert person.opened == 1


def test_aws_iam_authenticator_signs_a_request_without_asking_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F21."""
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-the-test",
        "AWS_REGION": "eu-central-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    program = program_of(AWS_IAM_AUTHENTICATOR, "aws-iam-authenticator")
    user = exec_user(program, version="v1beta1", args=["token", "-i", "dev"])
    config = write_kubeconfig(tmp_path / "config", server="https://localhost:1", user=user)
    credential = _credential(config)
    assert credential.token is not None
    assert credential.expires_at is not None
    form, _, signed = credential.token.reveal().partition(".")
    assert form == "k8s-aws-v1"
    url = urlsplit(base64.urlsafe_b64decode(signed + "=" * (-len(signed) % 4)).decode())
    query = parse_qs(url.query)
    assert query["Action"] == ["GetCallerIdentity"]
    assert "x-k8s-aws-id" in query["X-Amz-SignedHeaders"][0]
    assert "a-secret-key-of-the-test" not in credential.token.reveal()
