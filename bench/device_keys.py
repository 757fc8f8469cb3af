"""A handshake with a client certificate whose key is in a device, beside one whose key is in a file.

All sides alternate within one run; what counts is the difference of their lower quartiles, because the neighbours on a
shared machine only ever add: a signature waits for another thread, and so for a free core.
"""

from __future__ import annotations

import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import trustme

from bench.pace import pace
from bench.table import Row
from ostiary.core.tls import TlsSettings, build_context, parse_certificate
from ostiary.keys.opening import open_key
from ostiary.keys.pairing import pair_with_key
from ostiary.model import ClientCertificate
from tests.support.device_keys.certified import certify
from tests.support.device_keys.softhsm import PIN, SoftToken
from tests.support.device_keys.swtpm import soft_tpm

TURNS = pace(150, quick=5)


def run() -> Iterator[Row]:
    with ExitStack() as at_end:
        folder = Path(at_end.enter_context(tempfile.TemporaryDirectory(prefix="ostiary-bench-")))
        token = SoftToken(folder / "softhsm")
        token.init()
        token.generate("ec", "EC:prime256v1", "01")
        token.generate("rsa", "rsa:2048", "02")
        tpm = at_end.enter_context(soft_tpm(folder / "tpm"))
        tpm.create("0x81000001", "ecc256:ecdsa")
        os.environ |= {"SOFTHSM2_CONF": token.environ["SOFTHSM2_CONF"], "TPM2OPENSSL_TCTI": tpm.tcti}
        os.environ["OSTIARY_KEY_PIN"] = PIN
        yield from _rows(trustme.CA(), token)


def _rows(ca: trustme.CA, token: SoftToken) -> Iterator[Row]:
    sides = {"EC": _in_file(ca, trustme.KeyType.ECDSA), "RSA": _in_file(ca, trustme.KeyType.RSA)}
    for name, address in (
        ("SoftHSM, EC", token.address("ec")),
        ("SoftHSM, RSA 2048", token.address("rsa")),
        ("swtpm, EC", "tpm2:handle:0x81000001"),
    ):
        key = open_key(address)
        sides[name] = pair_with_key(certify(ca, key.public_key, name).decode(), key)
    took = _measure(ca, sides)
    for kind in ("EC", "RSA"):
        yield Row(f"handshake, {kind} key in a file, lower quartile", f"{took[kind] * 1000:.1f} ms")
    for name, kind, promised in (("SoftHSM, EC", "EC", 5), ("SoftHSM, RSA 2048", "RSA", 5), ("swtpm, EC", "EC", 20)):
        more = (took[name] - took[kind]) * 1000
        yield Row(f"more with the key in {name}, lower quartiles", f"{more:+.1f} ms", f"<= {promised} ms")


def _in_file(ca: trustme.CA, kind: trustme.KeyType) -> ClientCertificate:
    leaf = ca.issue_cert("file@example.test", common_name="file", key_type=kind)
    chain = "".join(pem.bytes().decode() for pem in leaf.cert_chain_pems)
    return parse_certificate(chain, leaf.private_key_pem.bytes().decode())


def _measure(ca: trustme.CA, sides: dict[str, ClientCertificate]) -> dict[str, float]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    settings = TlsSettings(ca.cert_pem.bytes().decode())
    contexts = {name: build_context(settings, certificate) for name, certificate in sides.items()}
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(TURNS + 5):
        for name, context in contexts.items():
            seconds = _handshake(server, context)
            if turn >= 5:
                samples[name].append(seconds)
    return {name: statistics.quantiles(times, n=4)[0] for name, times in samples.items()}


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Both ends in one thread and in memory: what is measured is the handshake, and no scheduler."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    begun, open_ends = time.perf_counter(), [ours, theirs]
    while open_ends:
        for end in tuple(open_ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            open_ends.remove(end)
    return time.perf_counter() - begun
