"""``ostiary kubeconfig``: create a kubectl context whose user signs in at a gateway."""

from __future__ import annotations

import argparse
import re
import sys
from base64 import b64decode

from ostiary.cli.arguments import UsageError
from ostiary.cli.authorities import authorities, checked_authorities
from ostiary.cli.cached_token import DEFAULT_ACCOUNT
from ostiary.cli.gateway_http import checked_address
from ostiary.cli.kubeconfig_file import Entry, merge_into_file, tell_merged, write_new
from ostiary.cli.login.gateway import GatewayClient
from ostiary.cli.login.login_lock import session_token
from ostiary.cli.login.options import add_account, chosen_account
from ostiary.cli.login.platforms.credential import WorkloadTurn
from ostiary.cli.login.platforms.options import add_platform, chosen_platform, platform_words
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.sessions import GatewayAccount, Sessions
from ostiary.cli.output import print_note
from ostiary.core.yaml.document import Json
from ostiary.core.yaml.edit import dump
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.wire.kubeconfig import OfferedCluster, clusters_kubeconfig, context_name, gateway_kubeconfig

# ``--all``: the clusters that the user or the job may use, as listed by the gateway.

MOST_CLUSTERS = 1000
# As in the gateway's configuration. The names are used in a kubeconfig and printed.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,252}")


def offered_clusters(
    account: GatewayAccount, choice: PlatformChoice | None, authorities_pem: str | None
) -> tuple[list[OfferedCluster], bool]:
    """Return the clusters, and whether the list is complete. Never prompts for a sign-in.

    Raises an `OstiaryError` if there is no response; without a session, it says how to get one.
    """
    if choice is None:
        token, authorities_pem = session_token(account, authorities_pem)
    else:
        token = WorkloadTurn(choice, authorities_pem).token()
    clusters, incomplete = GatewayClient(account.server, authorities_pem=authorities_pem).clusters(token)
    if len(clusters) > MOST_CLUSTERS:
        raise _unusable(account, f"it lists more than {MOST_CLUSTERS} clusters")
    return [_checked(account, cluster) for cluster in clusters], not incomplete


def _checked(account: GatewayAccount, cluster: OfferedCluster) -> OfferedCluster:
    """Validate the URL, because a token will be sent there."""
    if not _NAME.fullmatch(cluster.name):
        raise _unusable(account, "the name of a cluster has characters that no name has")
    try:
        return OfferedCluster(cluster.name, checked_address(cluster.server))
    except UsageError as error:
        cause = f"the URL of {cluster.name} cannot be used: {error.cause}"
    raise _unusable(account, cause)


def _unusable(account: GatewayAccount, cause: str) -> ProviderError:
    return ProviderError(
        "the gateway sent an invalid response", cause=cause, where=account.server, code="gateway-answer-invalid"
    )


DESCRIPTION = """\
Print a kubeconfig whose user runs `ostiary get-token`, or put its context into a kubeconfig that you have. It holds no
secret, so you can share it with everybody who signs in at this gateway. With --from it is for a CI job or pod, which
signs in by the token that its platform gives it. With --all it has every cluster of the gateway that you may use, and
one user for all of them, so that you sign in once.

--merge changes nothing else in your file: comments, order and quoting stay, and a copy is kept beside it. An entry of
the same name for another server or another way to sign in is reported and not replaced.
"""
EPILOG = """\
examples:
  ostiary kubeconfig --server https://gateway.example --merge
  ostiary kubeconfig --server https://gateway.example --all --merge
  ostiary kubeconfig --server https://gateway.example --name staging --prefix /staging --write staging.yaml
  ostiary kubeconfig --server https://gateway.example --account admin --name admin --merge
  ostiary kubeconfig --server https://gateway.example --api-server https://prod.example:6443 --ca prod-ca.pem \\
      --jwt-for https://prod.example --name prod --merge
  ostiary kubeconfig --server https://gateway.example --from github --write kubeconfig
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_account(parser)
    add_platform(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="a context NAME/CLUSTER for each cluster that you may use; needs a session (ostiary login)",
    )
    parser.add_argument("--name", metavar="NAME", help="the name of the context (default: the gateway's host)")
    parser.add_argument(
        "--prefix", metavar="PATH", default="", help="the path prefix of this cluster at the gateway, if not /"
    )
    parser.add_argument(
        "--api-server",
        metavar="URL",
        help="a cluster that trusts JWTs of the gateway, and is not behind it; needs --jwt-for. --ca is that server's",
    )
    parser.add_argument("--jwt-for", metavar="AUDIENCE", help="with --api-server: the audience of the cluster's JWTs")
    parser.add_argument("--namespace", metavar="NAME", help="the default namespace of the context")
    parser.add_argument("--ca", metavar="FILE", help="the CA certificate of the gateway, in PEM")
    parser.add_argument(
        "--ca-data", metavar="BASE64", help="the CA certificate as base64, as in certificate-authority-data"
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", metavar="FILE", help="write a new kubeconfig")
    target.add_argument(
        "--merge", action="store_true", help="put it into the first file of $KUBECONFIG, or ~/.kube/config"
    )
    parser.add_argument(
        "--force", action="store_true", help="with --merge: also replace entries that belong to another server or user"
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="with --all --merge: also remove contexts that --all wrote before, and that are not offered to you now",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    choice = chosen_platform(arguments)
    account = chosen_account(arguments) if choice is None else GatewayAccount(choice.server)
    _check_options(arguments)
    complete = True
    if arguments.all:
        authorities_pem = _chosen_authorities(arguments) or _known_authorities(account)
        clusters, complete = offered_clusters(account, choice, authorities_pem)
        kubeconfig = _kubeconfig_of_all(arguments, account, choice, clusters, authorities_pem)
    else:
        kubeconfig = _kubeconfig_of_one(arguments, account, choice)
    if arguments.merge:
        # A cluster that could not be checked may still exist, so do not remove any.
        _merge(kubeconfig, force=arguments.force, prune=arguments.prune, look_for_gone=arguments.all and complete)
    elif arguments.write:
        write_new(arguments.write, dump(kubeconfig).encode())
    else:
        sys.stdout.write(dump(kubeconfig))
    if not complete:
        print_note("some clusters could not be checked by the gateway and are left out; run this again later")
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.prefix and not arguments.prefix.startswith("/"):
        raise UsageError("--prefix must be a path such as /staging")
    if arguments.force and not arguments.merge:
        raise UsageError("--force needs --merge")
    if arguments.prune and not (arguments.all and arguments.merge):
        raise UsageError("--prune needs --all and --merge")
    if (arguments.api_server is None) != (arguments.jwt_for is None):
        raise UsageError("--api-server and --jwt-for need each other")
    if arguments.api_server is not None and arguments.prefix:
        raise UsageError("--prefix and --api-server cannot be combined", hint="leave one of them out")
    if arguments.all and (arguments.prefix or arguments.api_server is not None):
        hint = "leave them out: the gateway says where its clusters are"
        raise UsageError("--all cannot be combined with --prefix or --api-server", hint=hint)


def _kubeconfig_of_one(
    arguments: argparse.Namespace, account: GatewayAccount, choice: PlatformChoice | None
) -> dict[str, Json]:
    own = _own_name(account)
    api_server = "" if arguments.api_server is None else checked_address(arguments.api_server)
    return gateway_kubeconfig(
        account.server,
        name=arguments.name or context_name(api_server or account.server, own),
        prefix=arguments.prefix,
        account=own,
        namespace=arguments.namespace,
        authorities_pem=_chosen_authorities(arguments) or (None if api_server else _known_authorities(account)),
        platform=() if choice is None else platform_words(choice),
        api_server=api_server,
        jwt=() if arguments.jwt_for is None else ("--jwt-for", arguments.jwt_for),
    )


def _kubeconfig_of_all(
    arguments: argparse.Namespace,
    account: GatewayAccount,
    choice: PlatformChoice | None,
    clusters: list[OfferedCluster],
    authorities_pem: str | None,
) -> dict[str, Json]:
    own = _own_name(account)
    if not clusters and not arguments.prune:
        raise ConfigurationError(
            "there is no cluster that you may use",
            cause="the policy of the gateway allows you nothing at any of its clusters",
            where=account.server,
            hint="ask the operator of the gateway; ostiary whoami shows your groups",
            code="config-not-found",
        )
    return clusters_kubeconfig(
        account.server,
        clusters,
        name=arguments.name or context_name(account.server, own),
        account=own,
        namespace=arguments.namespace,
        authorities_pem=authorities_pem,
        platform=() if choice is None else platform_words(choice),
    )


def _own_name(account: GatewayAccount) -> str | None:
    return None if account.name == DEFAULT_ACCOUNT else account.name


def _merge(kubeconfig: Entry, *, force: bool, prune: bool, look_for_gone: bool) -> None:
    merged = merge_into_file(kubeconfig, force=force, prune=prune, look_for_gone=look_for_gone)
    tell_merged(kubeconfig, merged)
    if merged.gone and prune:
        print_note(f"removed, since not offered to you any more: {', '.join(merged.gone)}")
    elif merged.gone:
        print_note(f"not offered to you any more: {', '.join(merged.gone)}; --prune removes them")


def _known_authorities(account: GatewayAccount) -> str | None:
    try:
        session = Sessions(account).session()
    except ConfigurationError:
        return None
    return None if session is None else session.authorities_pem


def _chosen_authorities(arguments: argparse.Namespace) -> str | None:
    if arguments.ca_data is None:
        return authorities(arguments.ca)
    if arguments.ca is not None:
        raise UsageError("--ca and --ca-data cannot be combined", hint="leave one of them out")
    try:
        content = b64decode(arguments.ca_data, validate=True)
    except ValueError:
        raise UsageError("--ca-data is not base64") from None
    return checked_authorities(content, where="--ca-data")
