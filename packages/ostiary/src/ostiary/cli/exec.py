"""``ostiary exec``: run a kubeconfig's exec plugin, explain what would run, or check any plugin for conformance."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from ostiary import kubeconfig as kubeconfigs
from ostiary.cli.arguments import JSON, add_output, environment, seconds
from ostiary.cli.output import print_json, print_note, print_report, rows
from ostiary.client.authenticator import Authenticator
from ostiary.client.connection import Connection
from ostiary.client.credentials import cluster_info
from ostiary.client.exec.environment import ENVIRONMENT, PLUGIN_INPUTS
from ostiary.client.exec.kuberc import from_kuberc
from ostiary.client.exec.plugin import SECONDS_WITHOUT_A_PERSON, ExecPlugin, ExecSettings
from ostiary.client.exec.policy import Plan, PluginPolicy
from ostiary.client.retry_on_401 import authorization_header
from ostiary.conformance.exec_plugin import SECONDS, check
from ostiary.core.redaction import redact
from ostiary.errors import AnswerInvalid, ConfigurationError, PluginNotInteractive, PluginRefused
from ostiary.kubeconfig import ExecConfig, Kubeconfig, Selection, User
from ostiary.model import Credential
from ostiary.wire.client_authentication import (
    API_VERSIONS,
    INFO_VARIABLE,
    V1,
    V1ALPHA1,
    V1BETA1,
    ExecAnswer,
    encode_answer,
)

SHIPPED, PROPOSAL = "shipped", "proposal"
DIALECTS = (SHIPPED, PROPOSAL)


@dataclass(frozen=True, slots=True)
class ExecChoice:
    """The exec plugin that a command line selects: kubeconfig, context, user, cluster and plugin policy."""

    config: Kubeconfig
    selection: Selection
    settings: ExecSettings

    def plugin(self) -> ExecPlugin:
        """Return the plugin, configured exactly as a client of this selection would run it."""
        selection, exec_config = self.selection, self._exec_config()
        connection = Connection(selection, settings=self.settings)
        if isinstance(connection.source, Authenticator) and isinstance(connection.source.plugin, ExecPlugin):
            return connection.source.plugin
        # Another credential takes precedence for this user. Build the plugin nevertheless, to show its input.
        cluster = cluster_info(selection.cluster) if exec_config.provide_cluster_info else None
        return ExecPlugin(exec_config, user=selection.user.name, cluster=cluster, settings=self.settings)

    def without_a_person(self) -> ExecChoice:
        """Return the same choice with ``interactiveMode: Never``."""
        user = replace(self.selection.user, exec=replace(self._exec_config(), interactive_mode="Never"))
        return replace(self, selection=replace(self.selection, user=user))

    def _exec_config(self) -> ExecConfig:
        user = self.selection.user
        if user.exec is None:
            raise ConfigurationError(
                f"user {user.name!r} has no exec plugin",
                where=user.place,
                hint="choose another with --context or --user",
                code="config-not-found",
            )
        return user.exec


def wrong_dialect(cause: str) -> ConfigurationError:
    return ConfigurationError(
        "the dialect of the 2018 proposal cannot be spoken here",
        cause=cause,
        hint="it was spoken with apiVersion client.authentication.k8s.io/v1alpha1 alone",
        code="usage",
    )


def choice(arguments: argparse.Namespace) -> ExecChoice:
    """Return the selection by ``--kubeconfig``, ``--context``, ``--user``, ``--cluster`` and the plugin options."""
    as_proposed = arguments.dialect == PROPOSAL
    config = kubeconfigs.load(arguments.kubeconfig)
    selection = kubeconfigs.select(config, context=arguments.context, cluster=arguments.cluster, user=arguments.user)
    exec_config = selection.user.exec
    if as_proposed and exec_config is not None and exec_config.api_version != V1ALPHA1:
        raise wrong_dialect(f"the kubeconfig says {exec_config.api_version!r} in {exec_config.place}")
    settings = ExecSettings(
        policy=from_kuberc(),
        seconds=arguments.timeout,
        as_proposed=as_proposed,
        clean_environment=arguments.clean_environment,
        plugin_input=arguments.input,
        value_from=arguments.value_from,
    )
    return ExecChoice(config, selection, settings)


HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class ExecExplanation:
    """All facts that decide whether and how a plugin runs, without starting it (``ostiary exec explain``).

    Arguments are shown as written in the user's file. Values of environment variables, passwords and apparent secrets
    are not shown.
    """

    context: str
    user: str
    cluster: str
    config: ExecConfig
    executable: str | None
    environment: tuple[str, ...]
    inherited: str
    values_from: tuple[str, ...]
    interactive: bool | None
    interactive_why: str
    policy: str
    allowed: bool
    policy_why: str
    info: dict[str, object]
    notes: tuple[str, ...]
    unknown_fields: tuple[str, ...]

    def title(self) -> str:
        return f"the exec plugin of user {self.user!r}, in context {self.context!r} with cluster {self.cluster!r}"

    def as_rows(self) -> Iterator[tuple[str, str]]:
        yield "command", self.config.command
        yield "path", self.executable or "not found on PATH"
        yield "arguments", shlex.join(self.config.args) or "none"
        yield "environment", f"{self.inherited}: " + (", ".join(self.environment) or "none")
        for value in self.values_from:
            yield "value from", value
        yield "exec info", json.dumps(self.info, indent=2, ensure_ascii=False)
        yield "interactive", f"{_yes_or_no(self.interactive)}: {self.interactive_why}"
        yield "policy", f"{self.policy} {'allows it' if self.allowed else f'refuses it: {self.policy_why}'}"
        yield "where", str(self.config.place)
        for note in self.notes:
            yield "note", note
        for place in self.unknown_fields:
            yield "unknown", f"{place} (unknown field, ignored: a typo?)"

    def as_json(self) -> dict[str, object]:
        return {
            "context": self.context,
            "user": self.user,
            "cluster": self.cluster,
            "command": self.config.command,
            "executable": self.executable,
            "arguments": list(self.config.args),
            "environment": list(self.environment),
            "valuesFrom": list(self.values_from),
            "info": self.info,
            "interactive": self.interactive,
            "interactiveReason": self.interactive_why,
            "policy": {"name": self.policy, "allowed": self.allowed, "reason": self.policy_why},
            "where": str(self.config.place),
            "notes": list(self.notes),
            "unknownFields": list(self.unknown_fields),
        }


def explanation(choice: ExecChoice) -> ExecExplanation:
    """Return everything about a run of the chosen plugin, without running it."""
    selection, policy, plugin = choice.selection, choice.settings.policy, choice.plugin()
    interactive, why = _interactive(plugin, choice.settings)
    # If it could not run, show the plan of a non-interactive plugin.
    plan = plugin.plan() if interactive is not None else choice.without_a_person().plugin().plan()
    allowed, policy_why = _verdict(policy, plan)
    return ExecExplanation(
        context=selection.context_name,
        user=selection.user.name,
        cluster=selection.cluster.name,
        config=plugin.config,
        executable=plan.executable,
        environment=_environment(plan, choice.settings),
        inherited="only these" if choice.settings.clean_environment else "yours, and",
        values_from=plan.values_from,
        interactive=interactive,
        interactive_why=why,
        policy=type(policy).__name__,
        allowed=allowed,
        policy_why=policy_why,
        info=_shown_info(json.loads(plan.info)),
        notes=tuple(_notes(selection, plugin.config, plan)),
        unknown_fields=tuple(map(str, choice.config.unknown_fields)),
    )


def _environment(plan: Plan, settings: ExecSettings) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in plan.env_names if name != INFO_VARIABLE))
    return names if settings.plugin_input == "stdin" else (*names, INFO_VARIABLE)


def static_credential(user: User) -> str | None:
    """Describe the credential that takes precedence over this user's plugin. None if there is none."""
    if user.uses_exec:
        return None
    for there, name in (
        (user.token, "the static token"),
        (user.token_file, "the token file"),
        (user.username, "the username and password"),
    ):
        if there:
            return name
    return "the client certificate"


def _yes_or_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "impossible"}[value]


def _interactive(plugin: ExecPlugin, settings: ExecSettings) -> tuple[bool | None, str]:
    mode = f"interactiveMode is {plugin.config.interactive_mode}"
    try:
        interactive = plugin.is_interactive()
    except PluginNotInteractive as error:
        return None, str(error.cause)
    if plugin.config.interactive_mode == "Never":
        return False, mode
    if settings.plugin_input != ENVIRONMENT:
        return interactive, f"{mode}, and stdin carries its input"
    return interactive, f"{mode}, and stdin is {'a terminal' if interactive else 'not a terminal'}"


def _verdict(policy: PluginPolicy, plan: Plan) -> tuple[bool, str]:
    try:
        policy.check(plan)
    except PluginRefused as error:
        return False, str(error.cause)
    return True, ""


def _notes(selection: Selection, config: ExecConfig, plan: Plan) -> Iterator[str]:
    beaten_by = static_credential(selection.user)
    if beaten_by:
        yield f"{beaten_by} in the kubeconfig takes precedence: this plugin is never run. Remove it to use the plugin"
    if selection.cluster.server.startswith("http://"):
        yield "the server is not https, so no credential is sent to it and this plugin is never run"
    if selection.user.signing is not None:
        yield f"each request is also signed by the command {selection.user.signing.command!r}"
    if plan.executable is None and config.install_hint:
        yield f"installHint of the kubeconfig: {config.install_hint}"
    if os.path.dirname(config.command) and not os.access(config.command, os.X_OK):
        yield "the command does not exist, or cannot be executed"
    names = [name for name, _ in config.env]
    if "PATH" in names and not os.path.dirname(config.command):
        yield "exec.env sets PATH for the plugin, but the command was looked up in yours"
    if INFO_VARIABLE in names:
        yield f"exec.env sets {INFO_VARIABLE}, which is overridden"


# --- exec info without secrets ---


def _shown_info(info: dict[str, object]) -> dict[str, object]:
    spec = info.get("spec")
    cluster = spec.get("cluster") if isinstance(spec, dict) else None
    if cluster is not None:
        if authority := cluster.get("certificate-authority-data"):
            cluster["certificate-authority-data"] = f"({len(authority)} characters of base64)"
        if proxy := cluster.get("proxy-url"):
            cluster["proxy-url"] = _without_userinfo(proxy)
        cluster["config"] = _without_secrets(cluster.get("config"))
    return info


def _without_userinfo(url: str) -> str:
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{HIDDEN}@{host}" if at else host).geturl()


def _without_secrets(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {key: _without_secrets(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, name) for item in value]
    if isinstance(value, str) and redact(f"{name}={value}") != f"{name}={value}":
        return HIDDEN
    return value


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
    from ostiary.keys.held_key import HeldKey

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
