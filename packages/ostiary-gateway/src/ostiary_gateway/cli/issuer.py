"""``ostiary-gateway issuer``: kubernetes, keys and rotate."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import add_output
from ostiary_gateway.cli.options import add_config

KUBERNETES_HELP = """\
Print how a kube-apiserver trusts the JWTs of this gateway: its AuthenticationConfiguration, or with --webhook its
AuthorizationConfiguration, whose first authorizer denies what was revoked.

An API server verifies a JWT without asking anybody, until it expires. Two things end it sooner, and both can be used:
  the deny-list   --follow keeps a file fresh in which the AuthenticationConfiguration refuses what was revoked.
                  The API server reads a changed file by itself; a revoked JWT is refused within half a minute.
  the webhook     the API server asks the gateway for each request of its users: refused at once. While the gateway is
                  away, these users are refused (--failure-policy Deny), or only the deny-list protects (NoOpinion).
                  Nobody else depends on it.
Both need webhooks.revocations in gateway.yaml.
"""
KUBERNETES_EXAMPLES = """\
examples:
  ostiary-gateway issuer kubernetes --config gateway.yaml --audience https://prod.example > authentication.yaml
  ostiary-gateway issuer kubernetes --webhook /etc/kubernetes/ostiary/webhook.kubeconfig > authorization.yaml
  ostiary-gateway issuer kubernetes --server https://gateway.example --token-file caller-token \\
      --audience https://prod.example --follow /etc/kubernetes/ostiary/authentication.yaml
"""
KEYS_HELP = (
    "List the signing keys in the token store of a configuration: which one signs, and how long each is published.\n"
)
ROTATE_HELP = """\
Make a new key, which signs ten seconds later, when every replica publishes it. The keys before it stay published until
the JWTs that they signed have expired.

If a key may have become known to somebody, add --withdraw: the new key signs at once and is published alone, and what
the others signed is refused as soon as a verifier has fetched the keys again. kube-apiserver does that when it meets a
JWT of the new key; restart it, or present one, to be sure.
"""


HELP = """\
The gateway can sign JWTs for clusters that verify them themselves (issuer in gateway.yaml). Print what such a cluster
needs to trust the gateway; list the signing keys, or make a new one.
"""
EXAMPLES = """\
examples:
  ostiary-gateway issuer kubernetes --config gateway.yaml --audience https://prod.example > authentication.yaml
  ostiary-gateway issuer keys --config gateway.yaml
  ostiary-gateway issuer rotate --config gateway.yaml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = HELP, EXAMPLES
    verbs = parser.add_subparsers(required=True, metavar="kubernetes|keys|rotate")
    _configure_kubernetes(
        verbs.add_parser(
            "kubernetes",
            help="print the configuration of a kube-apiserver that trusts this gateway's JWTs",
            description=KUBERNETES_HELP,
            epilog=KUBERNETES_EXAMPLES,
        )
    )
    keys = verbs.add_parser("keys", help="list the signing keys", description=KEYS_HELP)
    add_config(keys)
    add_output(keys)
    keys.set_defaults(run=_keys)
    rotate = verbs.add_parser("rotate", help="make a new key, and sign with it", description=ROTATE_HELP)
    rotate.add_argument("--withdraw", action="store_true", help="publish no other key any more")
    add_config(rotate)
    add_output(rotate)
    rotate.set_defaults(run=_rotate)


def _configure_kubernetes(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--server", metavar="URL", help="ask the gateway that runs at this URL, instead of --config")
    parser.add_argument(
        "--token-file", metavar="FILE", help="with --server: the token of webhooks.callers.tokenFile of the gateway"
    )
    parser.add_argument("--ca", metavar="FILE", help="the CA certificate of the gateway, in PEM")
    parser.add_argument(
        "--audience",
        action="append",
        default=[],
        metavar="NAME",
        help="the audience of this cluster, one of issuer.audiences; may be repeated (default: all of them)",
    )
    parser.add_argument(
        "--discovery-url", metavar="URL", help="where this cluster finds the discovery document, if not at the issuer"
    )
    parser.add_argument(
        "--base", metavar="FILE", help="an AuthenticationConfiguration to which the issuer is added (YAML or JSON)"
    )
    parser.add_argument(
        "--follow", metavar="FILE", help="with --server: write the configuration here, again whenever it changes"
    )
    parser.add_argument(
        "--webhook",
        metavar="KUBECONFIG",
        help="print the AuthorizationConfiguration; the API server finds the webhook by this kubeconfig",
    )
    parser.add_argument(
        "--failure-policy",
        choices=("Deny", "NoOpinion"),
        default="Deny",
        help="with --webhook: what holds while the gateway cannot be asked (default: %(default)s)",
    )
    parser.set_defaults(run=_kubernetes)


# The implementations are imported lazily: ``--help`` must not wait for slow imports.


def _kubernetes(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.issuer_kubernetes import run

    return run(arguments)


def _keys(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.issuer_keys import list_keys

    return list_keys(arguments)


def _rotate(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.issuer_keys import rotate

    return rotate(arguments)
