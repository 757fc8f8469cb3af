"""``ostiary-gateway accounts``: the gateway's service accounts and their tokens."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ostiary.cli.arguments import JSON, UsageError, add_output, expiration_seconds
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json, print_table
from ostiary_gateway.cli.new_token import add_token_options, give_token, scope_text
from ostiary_gateway.cli.options import add_config, add_server, remote

if TYPE_CHECKING:
    from ostiary.core.account_names import AccountName
    from ostiary_gateway.accounts.service_accounts import ServiceAccounts
    from ostiary_gateway.cli.remote import ApiObject
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.sessions import Tokens

T = TypeVar("T")

DESCRIPTION = """\
Service accounts are users for programs: a namespace and a name, and no password. As a user, the account
shop/deployer is ostiary:serviceaccount:shop:deployer, in the groups ostiary:serviceaccounts and
ostiary:serviceaccounts:shop; the policy says what it may do. Deleting or disabling an account revokes
all its tokens at once.
"""
EXAMPLES = """\
examples:
  ostiary-gateway accounts create shop/deployer --server https://gateway.example.com
  ostiary-gateway accounts list --namespace shop --server https://gateway.example.com
  ostiary-gateway accounts token shop/deployer --for 1h --server https://gateway.example.com > token
  ostiary-gateway accounts delete shop/deployer --config gateway.yaml
"""
_PAGE = 500


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    verbs = parser.add_subparsers(required=True, metavar="create|list|disable|enable|delete|token")
    create = verbs.add_parser("create", help="create an account", description="Create a service account.")
    _add_name(create)
    create.add_argument("--description", metavar="TEXT", default="", help="what it is for, shown in lists")
    _finish(create, create_account)
    listing = verbs.add_parser("list", help="list accounts", description="List service accounts, by name.")
    listing.add_argument("-n", "--namespace", metavar="NAME", default="", help="only those of this namespace")
    _finish(listing, list_accounts)
    for verb, does in (("disable", "revoke its tokens, and issue no more"), ("enable", "issue tokens again")):
        change = verbs.add_parser(verb, help=does, description=f"{verb.capitalize()} a service account: {does}.")
        _add_name(change)
        _finish(change, disable_account if verb == "disable" else enable_account)
    delete = verbs.add_parser(
        "delete", help="delete an account", description="Delete a service account, and revoke its tokens."
    )
    _add_name(delete)
    _finish(delete, delete_account)
    token = verbs.add_parser(
        "token", help="issue a token", description="Issue a token of a service account, and print it on stdout."
    )
    _add_name(token)
    add_token_options(token)
    _finish(token, issue_token)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service_account", metavar="NAMESPACE/NAME", help="the service account")


def _finish(parser: argparse.ArgumentParser, run: object) -> None:
    add_config(parser)
    add_server(parser, beside_config=True)
    add_output(parser)
    parser.set_defaults(run=run)


def account_name(text: str) -> AccountName:
    from ostiary.core.account_names import parse_account_name

    try:
        return parse_account_name(text)
    except ValueError as error:
        raise UsageError(str(error), hint="as in: ostiary-gateway accounts create shop/deployer") from None


# --- the commands ---


def create_account(arguments: argparse.Namespace) -> int:
    name, gateway = account_name(arguments.service_account), remote(arguments)
    if gateway is not None:
        spec = {"description": arguments.description} if arguments.description else {}
        body = {"metadata": {"name": name.name}, "spec": spec}
        account = gateway.post("namespaces", name.namespace, "serviceaccounts", body=body)
    else:
        account = _with_accounts(arguments, lambda accounts, by: _create(accounts, name, arguments.description, by))
    return _print_result(arguments, account, f"service account {name} created: {account['status']['username']}")


def list_accounts(arguments: argparse.Namespace) -> int:
    gateway = remote(arguments)
    items: list[ApiObject] = []
    after = ""

    def read_store(accounts: ServiceAccounts, _: str) -> Awaitable[ApiObject]:
        return _page(accounts, arguments.namespace, after)

    while True:
        if gateway is not None:
            where = ("namespaces", arguments.namespace) if arguments.namespace else ()
            page = gateway.get(*where, "serviceaccounts", limit=str(_PAGE), **({"continue": after} if after else {}))
        else:
            page = _with_accounts(arguments, read_store)
        items += page["items"]
        after = page["metadata"].get("continue", "")
        if not after:
            break
    if arguments.output == JSON:
        print_json({**page, "metadata": {}, "items": items})
    else:
        _print_accounts(items)
    return OK


def disable_account(arguments: argparse.Namespace) -> int:
    return _change_state(arguments, disabled=True)


def enable_account(arguments: argparse.Namespace) -> int:
    return _change_state(arguments, disabled=False)


def delete_account(arguments: argparse.Namespace) -> int:
    name, gateway = account_name(arguments.service_account), remote(arguments)
    if gateway is not None:
        ended = int(gateway.delete("namespaces", name.namespace, "serviceaccounts", name.name)["ended"])
    else:
        ended = _with_accounts(arguments, lambda accounts, by: accounts.delete(name, by=by))
    text = f"service account {name} deleted: {ended} token{'' if ended == 1 else 's'} ended"
    return _print_result(arguments, {"account": str(name), "ended": ended}, text)


def issue_token(arguments: argparse.Namespace) -> int:
    name, gateway = account_name(arguments.service_account), remote(arguments)
    seconds, scope = expiration_seconds(arguments), scope_text(arguments)
    if gateway is not None:
        spec: dict[str, object] = {} if seconds is None else {"expirationSeconds": seconds}
        if scope:
            spec["scope"] = scope
        answer = gateway.post("namespaces", name.namespace, "serviceaccounts", name.name, "token", body={"spec": spec})
    else:
        answer = _with_accounts(arguments, lambda accounts, by: _issue(accounts, name, seconds, scope, by))
    return give_token(arguments, answer)


def _change_state(arguments: argparse.Namespace, *, disabled: bool) -> int:
    name, gateway = account_name(arguments.service_account), remote(arguments)
    if gateway is not None:
        where = ("namespaces", name.namespace, "serviceaccounts", name.name)
        account = gateway.patch(*where, body={"spec": {"disabled": disabled}})
    else:
        account = _with_accounts(arguments, lambda accounts, by: _set_state(accounts, name, disabled, by))
    return _print_result(arguments, account, f"service account {name} {'disabled' if disabled else 'enabled'}")


def _print_result(arguments: argparse.Namespace, answer: ApiObject, text: str) -> int:
    if arguments.output == JSON:
        print_json(answer)
    else:
        print(text)
    return OK


def _print_accounts(items: Sequence[ApiObject]) -> None:
    if not items:
        print("there are no service accounts")
        return
    header = ("NAMESPACE", "NAME", "STATE", "SOURCE", "CREATED", "DESCRIPTION")
    print_table(
        header,
        [
            (
                item["metadata"]["namespace"],
                item["metadata"]["name"],
                item["status"]["state"],
                item["status"]["source"],
                item["metadata"].get("creationTimestamp", ""),
                item["spec"]["description"],
            )
            for item in items
        ],
    )


# --- the store of a configuration ---


def _with_accounts(arguments: argparse.Namespace, work: Callable[[ServiceAccounts, str], Awaitable[T]]) -> T:
    """Return the result of *work* on the accounts, recorded as done by the user who runs this command."""
    from ostiary_gateway.accounts.service_accounts import ServiceAccounts
    from ostiary_gateway.cli.local_store import with_store
    from ostiary_gateway.cli.options import login_name

    def use(tokens: Tokens, config: GatewayConfig) -> Awaitable[T]:
        return work(ServiceAccounts(tokens, config.service_accounts), f"{login_name()} (ostiary-gateway accounts)")

    return with_store(arguments, use)


async def _create(accounts: ServiceAccounts, name: AccountName, description: str, by: str) -> ApiObject:
    from ostiary_gateway.accounts.json import account_json

    return account_json(await accounts.create(name, description=description, by=by))


async def _page(accounts: ServiceAccounts, namespace: str, after: str) -> ApiObject:
    from ostiary_gateway.accounts.json import accounts_json

    return accounts_json(await accounts.list(namespace, after=after, limit=_PAGE))


async def _set_state(accounts: ServiceAccounts, name: AccountName, disabled: bool, by: str) -> ApiObject:
    from ostiary_gateway.accounts.json import account_json
    from ostiary_gateway.accounts.service_accounts import AccountState

    state = AccountState.DISABLED if disabled else AccountState.ACTIVE
    return account_json(await accounts.set_state(name, state, by=by))


async def _issue(accounts: ServiceAccounts, name: AccountName, seconds: int | None, scope: str, by: str) -> ApiObject:
    from datetime import timedelta

    from ostiary_gateway.accounts.json import issued_json

    lifetime = None if seconds is None else timedelta(seconds=seconds)
    return issued_json(await accounts.issue(name, lifetime=lifetime, scope=scope, client=f"issued by {by}"))
