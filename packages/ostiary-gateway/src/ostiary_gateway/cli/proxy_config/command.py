"""``ostiary-gateway door``: print the configuration of nginx, Traefik, Caddy, Envoy, HAProxy or the Gateway API."""

from __future__ import annotations

import argparse

from ostiary_gateway.cli.options import add_config

DESCRIPTION = """\
Print the configuration with which {title} asks the gateway about each request, for a door of gateway.yaml.

It is complete: it presents the secret of the door, tells the upstream who the user is, takes out what a client could
claim to be, answers refusals as the gateway does, and lets nobody in while the gateway cannot be asked.
{more}"""
EPILOG = """\
examples:
  ostiary-gateway door {proxy} --config gateway.yaml --backend shop=http://10.0.0.5:9000 > {file}
"""
FOR_THE_PROXY_ALONE = """\
It holds the secret of the door: write it to a file that only the proxy can read.
"""
# Additional help and examples of the kinds that need them.
MORE = {
    "gateway-api": """\
It holds the secret of the door. The hosts of --gateway and --backend are names of Services. --listen, --certificate and
--key have no effect: these are settings of the Gateway.
""",
    "haproxy": """\
Two files are needed: haproxy.cfg, and with --spoe the file of its SPOE engine. The second holds the secret of the door:
write it to a file that only HAProxy can read.
""",
}
EXAMPLES = {
    "gateway-api": """\
examples:
  ostiary-gateway door gateway-api --config gateway.yaml --gateway https://ostiary:8443 --ca ca.pem \\
    --backend shop=http://shop:80 > routes.yaml
""",
    "haproxy": """\
examples:
  ostiary-gateway door haproxy --config gateway.yaml --backend shop=http://10.0.0.5:9000 > haproxy.cfg
  ostiary-gateway door haproxy --config gateway.yaml --backend shop=http://10.0.0.5:9000 --spoe > ostiary-spoe.conf
""",
}
# The name of each kind, and the usual file name of its configuration.
PROXIES = {
    "nginx": ("nginx", "ostiary.conf"),
    "traefik": ("Traefik", "ostiary.yaml"),
    "caddy": ("Caddy", "Caddyfile"),
    "envoy": ("Envoy", "envoy.yaml"),
    "envoy-grpc": ("Envoy over gRPC", "envoy.yaml"),
    "gateway-api": ("a Kubernetes Gateway", "routes.yaml"),
    "haproxy": ("HAProxy", "haproxy.cfg"),
}
SPOE_FILE = "/etc/haproxy/ostiary-spoe.conf"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="|".join(PROXIES))
    for proxy, (title, file) in PROXIES.items():
        verb = verbs.add_parser(
            proxy,
            help=f"the configuration of {title}",
            description=DESCRIPTION.format(title=title, more=MORE.get(proxy, FOR_THE_PROXY_ALONE)),
            epilog=EXAMPLES.get(proxy) or EPILOG.format(proxy=proxy, file=file),
        )
        _add_options(verb)
        if proxy == "nginx":
            verb.add_argument(
                "--cache",
                metavar="DURATION",
                help="let nginx use an allowing answer again for so long, as in 5s; revocations wait as long",
            )
            verb.add_argument(
                "--token-hash",
                dest="hash_module",
                choices=("njs", "set-misc"),
                default="njs",
                help="the module that hashes the token for --cache; set-misc is quicker (default: %(default)s)",
            )
            verb.add_argument(
                "--pass-header",
                dest="passed_headers",
                action="append",
                default=[],
                metavar="NAME",
                help="with --cache: a header of the client that the upstream gets, and no others; may be repeated"
                " (default: those of most programs and browsers; each costs a little time)",
            )
            verb.add_argument(
                "--key-script", action="store_true", help="print the script of njs that --cache needs, and nothing else"
            )
        if proxy == "haproxy":
            verb.add_argument(
                "--spoe", action="store_true", help="print the file of the SPOE engine, which haproxy.cfg names"
            )
            verb.add_argument(
                "--spoe-file",
                metavar="FILE",
                default=SPOE_FILE,
                help="where HAProxy finds the file of its SPOE engine (default: %(default)s)",
            )
            verb.add_argument(
                "--listen-certificate",
                metavar="FILE",
                help="HAProxy's own certificate with its key (PEM), as it finds it: it then serves HTTPS, with HTTP/2",
            )
        verb.set_defaults(run=_print, proxy=proxy, title=title)


# Defaults of options that only some kinds have.
_ABSENT: dict[str, object] = {
    "cache": None,
    "hash_module": "njs",
    "passed_headers": [],
    "key_script": False,
    "spoe": False,
    "spoe_file": SPOE_FILE,
    "listen_certificate": None,
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--door", metavar="NAME", help="which door, if there are several for this kind of proxy")
    parser.add_argument(
        "--listen", metavar="ADDRESS", default="0.0.0.0:8080", help="where the proxy listens (default: %(default)s)"
    )
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="UPSTREAM=URL",
        help="where the proxy finds an upstream, if not at its server in gateway.yaml; may be repeated",
    )
    parser.add_argument(
        "--backend-ca",
        action="append",
        default=[],
        metavar="UPSTREAM=FILE",
        help="the CA certificate of an upstream with https, as the proxy finds it (default: tls.ca of the upstream, or"
        " the system's); may be repeated",
    )
    parser.add_argument(
        "--backend-name",
        action="append",
        default=[],
        metavar="UPSTREAM=NAME",
        help="the name in the certificate of an upstream with https (default: tls.serverName of the upstream, or the"
        " host of its URL); may be repeated",
    )
    parser.add_argument(
        "--gateway",
        metavar="URL",
        help="where the proxy finds the gateway (default: listen.address; envoy-grpc: listen.grpc.address;"
        " haproxy: agent.address of the door)",
    )
    parser.add_argument("--ca", metavar="FILE", help="the CA certificate of the gateway, as the proxy finds it")
    parser.add_argument("--certificate", metavar="FILE", help="the client certificate of the proxy, as it finds it")
    parser.add_argument(
        "--key", metavar="FILE", help="the key of the client certificate; HAProxy has it in the same file"
    )


def _print(arguments: argparse.Namespace) -> int:
    # Imported lazily: ``--help`` must not wait for slow imports.
    from ostiary_gateway.cli.proxy_config.printing import run

    return run(argparse.Namespace(**{**_ABSENT, **vars(arguments)}))
