"""``ostiary-gateway tokens``: API tokens, which users create for clients and workloads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output, expiration_seconds
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json, print_table
from ostiary_gateway.cli.new_token import add_token_options, give_token, scope_text
from ostiary_gateway.cli.options import add_config, add_server, remote
from ostiary_gateway.cli.service_accounts import account_name

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import ApiObject
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.sessions import Tokens

DESCRIPTION = """\
API tokens are long-lived tokens for programs that cannot sign in: named, listed, expiring and revocable. A token acts
as you, with your groups, or with less (--can). It is shown once. If your account is disabled, it stops working.
The gateway must allow API tokens, and its policy must let you have them.

With --server these are your own tokens, or with --service-account those of a service account, as far as the policy
lets you have them. With --config and --user, an operator lists and revokes those of a user.
"""
EXAMPLES = """\
examples:
  ostiary-gateway tokens create backup-job --for 30d --server https://gateway.example.com --file backup.token
  ostiary-gateway tokens create dashboard --can "get,list pods -n shop" --server https://gateway.example.com
  ostiary-gateway tokens create metrics --service-account shop/reporter --server https://gateway.example.com
  ostiary-gateway tokens list --server https://gateway.example.com
  ostiary-gateway tokens revoke backup-job --server https://gateway.example.com
  ostiary-gateway tokens list --user alice --config gateway.yaml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    verbs = parser.add_subparsers(required=True, metavar="create|list|revoke")
    create = verbs.add_parser("create", help="make a token", description="Make an API token, and print it once.")
    create.add_argument("name", metavar="NAME", help="what you call it")
    add_token_options(create)
    _add_service_account(create)
    add_server(create)
    add_output(create)
    create.set_defaults(run=create_token, config=None)
    listing = verbs.add_parser("list", help="list tokens", description="List API tokens, the newest first.")
    _add_owner(listing)
    listing.set_defaults(run=list_tokens)
    revoke = verbs.add_parser("revoke", help="revoke a token", description="Revoke an API token at once, everywhere.")
    revoke.add_argument("name", metavar="NAME", help="its name, or its id from the list")
    _add_owner(revoke)
    revoke.set_defaults(run=revoke_token)


def _add_owner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", metavar="NAME", help="with --config: whose tokens")
    _add_service_account(parser)
    add_config(parser)
    add_server(parser, beside_config=True)
    add_output(parser)


def _add_service_account(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service-account", metavar="NAMESPACE/NAME", help="the tokens of this service account, in place of your own"
    )


def create_token(arguments: argparse.Namespace) -> int:
    gateway = remote(arguments)
    if gateway is None:
        raise UsageError(
            "--server is required: an API token is made by its owner, at the running gateway",
            hint="ostiary-gateway tokens create NAME --server https://gateway.example.com",
        )
    seconds = expiration_seconds(arguments)
    spec: dict[str, object] = {"name": arguments.name}
    if seconds is not None:
        spec["expirationSeconds"] = seconds
    if scope := scope_text(arguments):
        spec["scope"] = scope
    return give_token(arguments, gateway.post(*_path(arguments), body={"spec": spec}))


def list_tokens(arguments: argparse.Namespace) -> int:
    gateway = remote(arguments)
    if gateway is not None:
        _refuse_user(arguments)
        tokens = gateway.get(*_path(arguments))
    else:
        tokens = _list_in_store(arguments, _owner(arguments))
    if arguments.output == JSON:
        print_json(tokens)
    else:
        _print_tokens(tokens["items"])
    return OK


def revoke_token(arguments: argparse.Namespace) -> int:
    gateway = remote(arguments)
    if gateway is not None:
        _refuse_user(arguments)
        answer = (
            gateway.delete("apitokens", arguments.name)
            if arguments.service_account is None
            else gateway.delete(*_path(arguments), token=arguments.name)
        )
        name = answer["metadata"]["name"]
    else:
        name = _revoke_in_store(arguments, _owner(arguments))
    if arguments.output == JSON:
        print_json({"name": name, "revoked": True})
    else:
        print(f"API token {name} revoked")
    return OK


def _print_tokens(items: Sequence[ApiObject]) -> None:
    if not items:
        print("there are no API tokens")
        return
    rows = [
        (
            item["metadata"]["name"],
            item["status"]["user"],
            item["metadata"]["creationTimestamp"],
            item["status"]["lastUsed"] or "never",
            item["status"]["expirationTimestamp"],
            item["status"]["scope"] or "everything you may",
            item["status"]["id"],
        )
        for item in items
    ]
    print_table(("NAME", "OWNER", "CREATED", "LAST USED", "EXPIRES", "SCOPE", "ID"), rows)


def _path(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the path of the tokens below the API's prefix."""
    if arguments.service_account is None:
        return ("apitokens",)
    account = account_name(arguments.service_account)
    return ("namespaces", account.namespace, "serviceaccounts", account.name, "token")


def _refuse_user(arguments: argparse.Namespace) -> None:
    if arguments.user is not None:
        raise UsageError("--user needs --config", hint="with --server these are your own tokens")


def _owner(arguments: argparse.Namespace) -> str:
    if arguments.service_account is not None and arguments.user is None:
        return account_name(arguments.service_account).username
    if not arguments.user or arguments.service_account is not None:
        raise UsageError(
            "--user, --service-account or --server is missing",
            hint="your own tokens: --server URL; those of a user: --config FILE --user NAME",
        )
    return str(arguments.user)


# --- the store of a configuration ---


def _list_in_store(arguments: argparse.Namespace, user: str) -> ApiObject:
    from ostiary_gateway.accounts.api_tokens import ApiTokens
    from ostiary_gateway.accounts.json import api_tokens_json
    from ostiary_gateway.cli.local_store import with_store

    async def work(tokens: Tokens, config: GatewayConfig) -> ApiObject:
        return api_tokens_json(await ApiTokens(tokens, config.api_tokens).list(user))

    return with_store(arguments, work)


def _revoke_in_store(arguments: argparse.Namespace, user: str) -> str:
    from ostiary_gateway.accounts.api_tokens import ApiTokens
    from ostiary_gateway.cli.local_store import with_store
    from ostiary_gateway.cli.options import login_name

    async def work(tokens: Tokens, config: GatewayConfig) -> str:
        by = f"{login_name()} (ostiary-gateway tokens revoke)"
        return (await ApiTokens(tokens, config.api_tokens).revoke(user, arguments.name, by=by)).name

    return with_store(arguments, work)
