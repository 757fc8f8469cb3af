"""The authority that kubeconfigs of the sign-in page need."""

from __future__ import annotations

from pathlib import Path

import trustme

from ostiary_gateway.config import loads, warnings
from ostiary_gateway.config.certificate_files import is_from_a_known_authority, own_authorities

CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
listen: {tls: {certificate: tls.pem, key: tls.pem}}
store: {type: memory}
identity: [{name: me, type: single_user}]
authorization: {chain: [{name: all, type: allow_all}]}
"""


def write_leaf(folder: Path, ca: trustme.CA, *, root: bool) -> None:
    leaf = ca.issue_cert("gateway.example")
    chain = [leaf.private_key_pem, *leaf.cert_chain_pems, *([ca.cert_pem] if root else [])]
    (folder / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in chain))
    (folder / "ca.pem").write_bytes(ca.cert_pem.bytes())


def test_the_root_of_the_listeners_chain_needs_no_setting(tmp_path: Path, ca: trustme.CA) -> None:
    write_leaf(tmp_path, ca, root=True)
    config = loads(CONFIG, directory=tmp_path)
    assert config.authorities_pem == ca.cert_pem.bytes().decode()
    assert not [warning for warning in warnings(config) if "externalCA" in warning]


def test_an_authority_that_nobody_knows_is_asked_for_and_then_taken(tmp_path: Path, ca: trustme.CA) -> None:
    write_leaf(tmp_path, ca, root=False)
    assert own_authorities(tmp_path / "tls.pem") is None
    assert not is_from_a_known_authority(tmp_path / "tls.pem")
    assert [warning for warning in warnings(loads(CONFIG, directory=tmp_path)) if "externalCA" in warning]
    config = loads(CONFIG + "externalCA: ca.pem\n", directory=tmp_path)
    assert config.authorities_pem == ca.cert_pem.bytes().decode()
    assert not [warning for warning in warnings(config) if "externalCA" in warning]
