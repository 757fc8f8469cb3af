"""What ``ostiary exec explain`` tells: every fact that decides whether and how a plugin runs.

Made from a selection and its plugin without starting anything. Arguments are shown as they stand in the
user's own file; values of environment variables, passwords and what looks like a secret are not.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from ostiary.cli.exec.choice import ExecChoice
from ostiary.client.exec.environment import ENVIRONMENT
from ostiary.client.exec.plugin import ExecPlugin, ExecSettings
from ostiary.client.exec.policy import Plan, PluginPolicy
from ostiary.client.kubeconfig import ExecConfig, Selection, User
from ostiary.core.secrets.redact import redact
from ostiary.errors import PluginNotInteractive, PluginRefused
from ostiary.wire.client_authentication import INFO_VARIABLE

HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class ExecExplanation:
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
    """Everything about a run of the chosen plugin, now; and nothing is run."""
    selection, policy, plugin = choice.selection, choice.settings.policy, choice.plugin()
    interactive, why = _interactive(plugin, choice.settings)
    # Where it would not come to a run, show the plan that a plugin without a person would have.
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
    """What beats this user's plugin, in words; None if nothing does."""
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


# --- the info, fit to be shown ---


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
