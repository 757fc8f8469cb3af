"""SimpleSAMLphp (Debian's) as an identity system on loopback: PHP's own server, and a folder with its settings.

    with SimpleSamlPhp.running(tmp_path) as idp:
        ...                                # a gateway with metadataURL: idp.metadata_url
        idp.trust(metadata_of_the_gateway)

Alice signs in there with `PASSWORD`. What it is told of the gateway is the metadata that the gateway publishes.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx2

from tests.support.ports import free_port
from tests.support.saml.documents import signer

SHARE = Path("/usr/share/simplesamlphp")
PASSWORD = "typed-at-simplesamlphp"
SECONDS = 30.0

_CONFIG = """<?php
$config = [
    'baseurlpath' => '{url}/',
    'certdir' => '{folder}/cert/', 'loggingdir' => '{folder}/log/', 'datadir' => '{folder}/data/',
    'tempdir' => '{folder}/tmp', 'metadatadir' => '{folder}/metadata/',
    'secretsalt' => 'only for tests', 'auth.adminpassword' => 'only for tests, too',
    'technicalcontact_email' => 'nobody@example.com', 'timezone' => 'UTC',
    'enable.saml20-idp' => true, 'module.enable' => ['exampleauth' => true, 'core' => true, 'saml' => true],
    'session.cookie.secure' => false, 'session.cookie.samesite' => null, 'language.cookie.secure' => false,
    'language.cookie.samesite' => null,
    'session.phpsession.savepath' => '{folder}/sessions', 'store.type' => 'phpsession',
    'logging.handler' => 'file', 'logging.level' => 7, 'logging.logfile' => 'simplesamlphp.log',
    'enable.http_post' => true, 'language.default' => 'en',
    'metadata.sources' => [['type' => 'flatfile'], ['type' => 'xml', 'file' => '{folder}/sp.xml']],
];
"""
_SOURCES = """<?php
$config = ['people' => ['exampleauth:UserPass',
    'alice:{password}' => ['uid' => ['alice'], 'mail' => ['alice@example.com'], 'groups' => ['developers', 'drinkers']],
]];
"""
_HOSTED = """<?php
$metadata['{url}/idp'] = [
    'host' => '__DEFAULT__', 'privatekey' => 'idp.key', 'certificate' => 'idp.crt', 'auth' => 'people',
    'NameIDFormat' => 'urn:oasis:names:tc:SAML:2.0:nameid-format:persistent',
    'authproc' => [3 => ['class' => 'saml:AttributeNameID', 'attribute' => 'uid',
        'Format' => 'urn:oasis:names:tc:SAML:2.0:nameid-format:persistent']],
    'signature.algorithm' => 'http://www.w3.org/2001/04/xmldsig-more#rsa-sha256',
    'sign.logout' => true, 'validate.logout' => true, 'redirect.sign' => true, 'redirect.validate' => true,
    'validate.authnrequest' => true, 'assertion.encryption' => {encryption},
    'saml20.sendartifact' => false,
];
"""
_NO_SERVICE = '<md:EntitiesDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata"/>'


class SimpleSamlPhp:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.entity_id = f"{self.url}/idp"
        self.metadata_url = f"{self.url}/saml2/idp/metadata.php"

    @classmethod
    @contextmanager
    def running(cls, folder: Path, *, encryption: bool = False) -> Iterator[Self]:
        port = free_port()
        idp = cls(folder, port)
        idp._write(encryption)
        environment = {
            **os.environ,
            "SIMPLESAMLPHP_CONFIG_DIR": str(folder / "config"),
            # One request may wait for another one.
            "PHP_CLI_SERVER_WORKERS": "3",
        }
        with (folder / "log" / "php.log").open("w") as log:
            command = ["php", "-d", "opcache.enable_cli=1", "-S", f"127.0.0.1:{port}", "-t", str(SHARE / "www")]
            with subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) as process:
                try:
                    idp._wait(process)
                    yield idp
                finally:
                    os.killpg(process.pid, 15)

    def trust(self, metadata: str) -> None:
        """Take up what a service says about itself."""
        (self.folder / "sp.xml").write_text(metadata)

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in (self.folder / "log").iterdir())

    def _write(self, encryption: bool) -> None:
        for name in ("cert", "log", "data", "tmp", "metadata", "sessions", "config"):
            (self.folder / name).mkdir(parents=True)
        values = {"{url}": self.url, "{folder}": str(self.folder), "{password}": PASSWORD}
        values["{encryption}"] = "true" if encryption else "false"
        texts = {
            "config/config.php": _CONFIG,
            "config/authsources.php": _SOURCES,
            "metadata/saml20-idp-hosted.php": _HOSTED,
            "sp.xml": _NO_SERVICE,
        }
        for name, pattern in texts.items():
            content = re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], pattern)
            (self.folder / name).write_text(content)
        key = signer("simplesamlphp")
        (self.folder / "cert" / "idp.key").write_bytes(key.key_pem)
        (self.folder / "cert" / "idp.crt").write_bytes(key.certificate_pem)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None, self.log
            try:
                answer = httpx2.get(self.metadata_url, trust_env=False)
                assert answer.status_code == 200, answer.text + self.log
                return
            except httpx2.TransportError:
                assert time.monotonic() < deadline, self.log
