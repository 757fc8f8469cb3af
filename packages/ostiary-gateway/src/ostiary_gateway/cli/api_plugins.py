"""``ostiary-gateway api-plugins``: processes that serve an API group next to a cluster, behind the gateway."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json, print_table
from ostiary_gateway.cli.options import add_server, remote

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import ApiObject, RemoteGateway

DESCRIPTION = """\
An API plugin is a process of its own that serves an API group, as in builds.example.com, beside a Kubernetes upstream
of the gateway. kubectl finds its resources among those of the cluster. The gateway signs users in, asks the policy and
tells the plugin who asks, over TLS that both sides verify. A plugin is called after its upstream and its group:
cluster.builds.example.com. The policy must let you list, create and delete apiplugins of the API group ostiary.dev.
"""
EXAMPLES = """\
examples:
  ostiary-gateway api-plugins list --server https://gateway.example.com
  ostiary-gateway api-plugins register builds.example.com --upstream cluster --versions v1 \\
    --url https://builds.example.com:9443 --plugin-ca builds-ca.pem --server https://gateway.example.com
  ostiary-gateway api-plugins remove cluster.builds.example.com --server https://gateway.example.com
"""
REGISTER = """\
Register an API plugin at the running gateway (--server). It is served within seconds, by all workers and replicas.
--plugin-ca or --pin is required. The token store must keep objects, and the gateway needs apiPlugins.certificate.
"""
LARGEST_CA = 32 * 1024


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    verbs = parser.add_subparsers(required=True, metavar="list|register|remove")
    listing = verbs.add_parser("list", help="list plugins", description="List API plugins, and whether they are well.")
    _finish(listing, list_plugins)
    register = verbs.add_parser("register", help="register a plugin", description=REGISTER)
    register.add_argument("group", metavar="GROUP", help="the API group that it serves")
    register.add_argument("--upstream", metavar="NAME", required=True, help="the upstream that it stands beside")
    register.add_argument(
        "--versions", metavar="VERSIONS", required=True, help="what it serves, the preferred first: v1,v1beta1"
    )
    register.add_argument("--url", metavar="URL", required=True, help="where it listens: https://host:port")
    register.add_argument("--plugin-ca", metavar="FILE", help="the CA certificates of the plugin, in PEM")
    register.add_argument(
        "--pin",
        metavar="SHA256",
        action="append",
        default=[],
        help="the SHA-256 of a certificate that it may have; may be repeated",
    )
    register.add_argument(
        "--server-name", metavar="NAME", default="", help="the name in its certificate, if it is not the host of --url"
    )
    register.add_argument(
        "--health", metavar="PATH", default="", help="a path that answers 200 while the plugin is healthy"
    )
    _finish(register, register_plugin)
    remove = verbs.add_parser("remove", help="remove a plugin", description="Remove an API plugin that was registered.")
    remove.add_argument("name", metavar="NAME", help='UPSTREAM.GROUP, as "api-plugins list" prints it')
    _finish(remove, remove_plugin)


def _finish(parser: argparse.ArgumentParser, run: object) -> None:
    add_server(parser)
    add_output(parser)
    parser.epilog = EXAMPLES
    parser.set_defaults(run=run, config=None)


def list_plugins(arguments: argparse.Namespace) -> int:
    plugins = _gateway(arguments).get("apiplugins")
    if arguments.output == JSON:
        print_json(plugins)
    else:
        _print_plugins(plugins["items"])
    return OK


def register_plugin(arguments: argparse.Namespace) -> int:
    spec = {
        "upstream": arguments.upstream,
        "group": arguments.group,
        "versions": arguments.versions.split(","),
        "server": arguments.url,
        "ca": _read_ca(arguments.plugin_ca),
        "pins": arguments.pin,
        "serverName": arguments.server_name,
        "health": arguments.health,
    }
    plugin = _gateway(arguments).post("apiplugins", body={"spec": {key: value for key, value in spec.items() if value}})
    if arguments.output == JSON:
        print_json(plugin)
    else:
        print(f"API plugin {plugin['metadata']['name']} registered")
    return OK


def remove_plugin(arguments: argparse.Namespace) -> int:
    answer = _gateway(arguments).delete("apiplugins", arguments.name)
    if arguments.output == JSON:
        print_json(answer)
    else:
        print(f"API plugin {arguments.name} removed")
    return OK


def _gateway(arguments: argparse.Namespace) -> RemoteGateway:
    gateway = remote(arguments)
    if gateway is None:
        hint = "plugins of a configuration file are in apiPlugins.declared"
        raise UsageError("--server is required: plugins are registered at the running gateway", hint=hint)
    return gateway


def _read_ca(path: str | None) -> str:
    if path is None:
        return ""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(LARGEST_CA + 1)
    except (OSError, UnicodeDecodeError):
        raise UsageError("the file of --plugin-ca cannot be read as PEM") from None
    if "PRIVATE KEY" in text:
        raise UsageError("the file of --plugin-ca holds a private key", hint="name the file with the certificate")
    return text


def _print_plugins(items: Sequence[ApiObject]) -> None:
    if not items:
        print("there are no API plugins")
        return
    rows = [
        (
            item["metadata"]["name"],
            ",".join(item["spec"]["versions"]),
            item["spec"]["server"],
            "yes" if item["status"]["available"] else "no",
            item["status"]["source"],
            item["status"]["message"] or "-",
        )
        for item in items
    ]
    print_table(("NAME", "VERSIONS", "SERVER", "AVAILABLE", "SOURCE", "MESSAGE"), rows)
