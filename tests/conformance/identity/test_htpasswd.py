"""A password file keeps the contract of an identity provider, as Apache's own program writes it."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.htpasswd import HtpasswdIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract


@pytest.mark.needs("htpasswd")
class TestHtpasswdIdentity(IdentityContract):
    """S3, S26, S28."""

    @pytest.fixture
    def provider(self, tmp_path: Path, clock: FakeClock) -> HtpasswdIdentity:
        path = tmp_path / "users"
        command = ["htpasswd", "-c", "-i", "-B", "-C", "5", str(path), "alice"]
        subprocess.run(command, input=b"correct horse", check=True, capture_output=True)
        return HtpasswdIdentity(path=path, clock=clock)

    @pytest.fixture
    def proof(self) -> LoginRequest:
        return basic("alice", "correct horse")

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return basic("alice", "battery staple")


class TestHtpasswdIdentityByForm(TestHtpasswdIdentity):
    """S28."""

    @pytest.fixture
    def proof(self) -> LoginRequest:
        return form("alice", "correct horse")

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return form("alice", "battery staple")


def basic(username: str, password: str) -> LoginRequest:
    encoded = b64encode(f"{username}:{password}".encode()).decode()
    return LoginRequest("GET", "/auth", headers=(("authorization", f"Basic {encoded}"),), remote_address="192.0.2.7")


def form(username: str, password: str) -> LoginRequest:
    fields = (("username", username), ("password", password))
    return LoginRequest("POST", "/auth", form=fields, remote_address="192.0.2.7")
