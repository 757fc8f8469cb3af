"""``ostiary exec``: run a kubeconfig's exec plugin, say what would run, or judge any plugin."""

from __future__ import annotations

import argparse
import json
import sys

from ostiary.cli.arguments import JSON, add_output, environment, seconds
from ostiary.cli.exec.choice import DIALECTS, PROPOSAL, SHIPPED, choice, wrong_dialect
from ostiary.cli.exec.explanation import explanation, static_credential
from ostiary.cli.output import print_json, print_note, rows
from ostiary.cli.report import print_report
from ostiary.client.exec.check import SECONDS, check
from ostiary.client.exec.environment import ENVIRONMENT, PLUGIN_INPUTS
from ostiary.client.exec.plugin import SECONDS_WITHOUT_A_PERSON
from ostiary.client.retry_on_401 import authorization_header
from ostiary.errors import AnswerInvalid
from ostiary.model import Credential
from ostiary.wire.client_authentication import API_VERSIONS, V1, V1BETA1, ExecAnswer, encode_answer

HEADER = "header"

RUN_HELP = """\
Run the exec plugin of a kubeconfig once, as a client would, and print the credential it answers with.

THE CREDENTIAL IS A SECRET, and this prints it: keep it out of logs, tickets and shared screens.
`ostiary exec explain` and `ostiary exec check` never show it.
"""
RUN_EXAMPLES = """\
examples:
  ostiary exec run --context staging
  ostiary exec run --output header | curl --header @- https://cluster.example/api
"""
EXPLAIN_HELP = """\
Show what would run, and why, without running it: the program that would be started, its arguments, its input,
whether it may be interactive, whether the plugin policy allows it, and what would prevent its use.
Values of environment variables are not shown.
"""
CHECK_HELP = """\
Check an exec plugin, written in any language, against the rules of Kubernetes clients. The plugin is run about
five times, without a person, and must be able to answer: sign in first if it needs that. Nothing that it
prints on stdout is shown; if it fails, its stderr is shown, with secrets removed.
"""
CHECK_EXAMPLES = """\
examples:
  ostiary exec check ./my-plugin get-token
  ostiary exec check --api-version v1 --env REGION=north acme-login --quiet
  ostiary exec check --dialect proposal ./plugin-of-2018
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="run|explain|check")
    _configure_run(verbs.add_parser("run", help="print the credential", description=RUN_HELP, epilog=RUN_EXAMPLES))
    _configure_explain(verbs.add_parser("explain", help="show what would run", description=EXPLAIN_HELP))
    _configure_check(verbs.add_parser("check", help="check any plugin", description=CHECK_HELP, epilog=CHECK_EXAMPLES))


def _configure_run(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser)
    add_output(parser, HEADER)
    parser.set_defaults(run=run_plugin)


def _configure_explain(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser)
    add_output(parser)
    parser.set_defaults(run=explain)


def _configure_check(parser: argparse.ArgumentParser) -> None:
    names = [version.rpartition("/")[2] for version in API_VERSIONS]
    parser.add_argument(
        "--api-version",
        action="append",
        choices=names,
        help="a version that it should support; may be repeated (default: v1 and v1beta1)",
    )
    _add_dialect(parser)
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="add a variable to its environment"
    )
    parser.add_argument("--timeout", type=seconds, default=SECONDS, metavar="SECONDS", help="time limit for one run")
    add_output(parser)
    parser.add_argument("command", metavar="COMMAND", help="the plugin")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=check_plugin)


def _add_dialect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dialect",
        choices=DIALECTS,
        default=SHIPPED,
        help="proposal: speak to a v1alpha1 plugin in the words of the 2018 proposal (ExecInfo, ExecCredentials)",
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    _add_dialect(parser)
    parser.add_argument("--kubeconfig", metavar="FILE", help="instead of $KUBECONFIG or ~/.kube/config")
    parser.add_argument("--context", metavar="NAME", help="instead of the current context")
    parser.add_argument("--user", metavar="NAME", help="instead of the context's user")
    parser.add_argument("--cluster", metavar="NAME", help="instead of the context's cluster")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=SECONDS_WITHOUT_A_PERSON,
        metavar="SECONDS",
        help="time limit for a non-interactive plugin (default: %(default)g)",
    )
    parser.add_argument(
        "--clean-environment",
        action="store_true",
        help="give the plugin only the variables of the kubeconfig, and none of yours",
    )
    parser.add_argument(
        "--input",
        choices=PLUGIN_INPUTS,
        default=ENVIRONMENT,
        help="where the plugin finds its input: KUBERNETES_EXEC_INFO, stdin, or both (default: %(default)s)",
    )
    parser.add_argument(
        "--value-from",
        action="store_true",
        help="let the kubeconfig name files, keyring entries and commands for the plugin's variables",
    )


# --- run ---


def run_plugin(arguments: argparse.Namespace) -> int:
    plugin_choice = choice(arguments)
    plugin = plugin_choice.plugin()
    beaten_by = static_credential(plugin_choice.selection.user)
    if beaten_by:
        print_note(f"a client would not run this plugin: {beaten_by} takes precedence")
    credential = plugin.run()
    if arguments.output == HEADER:
        print(_header(credential))
        return 0
    as_proposed = plugin_choice.settings.as_proposed
    text = encode_answer(_answer(credential), api_version=plugin.config.api_version, as_proposed=as_proposed)
    if arguments.output == JSON:
        print(text, end="")
    else:
        print_json(json.loads(text))
    return 0


def _answer(credential: Credential) -> ExecAnswer:
    from ostiary.core.keys.held_key import HeldKey

    certificate = credential.certificate
    key = certificate.device_key if certificate else None
    return ExecAnswer(
        token=credential.token,
        certificate_pem=certificate.chain_pem if certificate else None,
        key_pem=certificate.key_pem if certificate else None,
        expires_at=credential.expires_at,
        key_address=key.name if isinstance(key, HeldKey) else None,
    )


def _header(credential: Credential) -> str:
    value = authorization_header(credential)
    if value is None:
        raise AnswerInvalid(
            "there is no header to print",
            cause="the plugin answered with a client certificate and no token",
            hint="print the whole credential with --output json",
        )
    return f"Authorization: {value}"


# --- explain ---


def explain(arguments: argparse.Namespace) -> int:
    report = explanation(choice(arguments))
    if arguments.output == JSON:
        print_json(report.as_json())
        return 0
    print(report.title())
    for row in rows(report.as_rows(), stream=sys.stdout, width=11):
        print(row)
    return 0


# --- check ---


def check_plugin(arguments: argparse.Namespace) -> int:
    as_proposed = arguments.dialect == PROPOSAL
    if as_proposed and arguments.api_version not in (None, ["v1alpha1"]):
        raise wrong_dialect("--api-version names another version")
    names = arguments.api_version or [V1.rpartition("/")[2], V1BETA1.rpartition("/")[2]]
    report = check(
        (arguments.command, *arguments.arguments),
        env=environment(arguments.env),
        versions=[version for version in API_VERSIONS if version.rpartition("/")[2] in names],
        as_proposed=as_proposed,
        seconds=arguments.timeout,
    )
    print_report(report, as_json=arguments.output == JSON)
    return 0 if report.ok else 1
