"""Read one kubeconfig document into the model, and list its errors.

Relative paths are resolved against *base*: the folder of the file, or None for a text from memory, whose paths stay
unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ostiary.core.text import printable
from ostiary.core.yaml import ConfigReader, ConfigSection, Document, Json
from ostiary.keys.address import KeyAddress, parse_address
from ostiary.kubeconfig.model import (
    AuthProvider,
    Cluster,
    Context,
    ExecConfig,
    Impersonation,
    Kubeconfig,
    SigningConfig,
    User,
    ValueFrom,
)
from ostiary.model import Problem, Secret
from ostiary.wire.kubeconfig import CLIENT_KEY_EXTENSION, EXEC_EXTENSION

# ostiary's extensions of a user entry. They are stored among the ``extensions``, which kubectl preserves; an unknown
# field would be lost the next time kubectl writes the file.

EXEC = "ostiary.dev/exec"
REQUEST_SIGNING = "ostiary.dev/request-signing"
ENV_HINT = f"put it into the user's extension {EXEC}: kubectl drops fields that it does not know"
Resolve = Callable[[str], str]


def extension_of(user: ConfigSection, name: str) -> ConfigSection | None:
    """Return the user's extension of that name, or None."""
    for item in user.sections("extensions"):
        # `_extensions` has already read it completely.
        item.ignore("extension")
        if item.string("name") == name:
            return item.optional_section("extension")
    return None


def values_from(user: ConfigSection, resolve: Resolve) -> tuple[ValueFrom, ...]:
    """Return the variables of the exec plugin with an external source. *resolve* makes a path absolute."""
    fields = extension_of(user, EXEC)
    if fields is None:
        return ()
    values = [_value_from(item, resolve) for item in fields.sections("env")]
    return tuple(value for value in values if value is not None)


def _value_from(item: ConfigSection, resolve: Resolve) -> ValueFrom | None:
    name, source = item.string("name"), item.section("valueFrom")
    if not name or "=" in name or "\0" in name:
        item.problem("a variable needs a name, without =", "name")
        return None
    file, command, env = source.string("file"), source.strings("command"), source.string("env")
    keyring = source.optional_section("keyring")
    choices = [("file", (resolve(file),) if file else ()), ("command", _command(command, resolve)), ("env", (env,))]
    if keyring is not None:
        service, username = keyring.string("service"), keyring.string("username")
        choices.append(("keyring", (service, username) if username else ()))
    chosen = [(kind, words) for kind, words in choices if words and words[0]]
    if len(chosen) != 1:
        hint = "set file, command (a list of words), env, or keyring with service and username"
        item.problem(f"valueFrom of {name!r} needs exactly one place to read the value from", "valueFrom", hint)
        return None
    ((kind, words),) = chosen
    return ValueFrom(name, kind, words, item.place())


def _command(words: tuple[str, ...], resolve: Resolve) -> tuple[str, ...]:
    return (resolve(words[0]) if os.sep in words[0] else words[0], *words[1:]) if words else ()


def signing_of(user: ConfigSection, resolve: Resolve) -> SigningConfig | None:
    """Return the command that signs this user's requests, or None."""
    fields = extension_of(user, REQUEST_SIGNING)
    if fields is None:
        return None
    command = fields.string("command")
    if not command:
        fields.problem("request signing needs a command", "command")
        return None
    return SigningConfig(
        command=resolve(command) if os.sep in command else command,
        args=fields.strings("args"),
        env=tuple((item.string("name"), item.string("value")) for item in fields.sections("env")),
        streamed=fields.boolean("streamed"),
        place=fields.place(),
    )


T = TypeVar("T")
# Before v1, interactiveMode was optional.
_MODE_OPTIONAL = ("client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1")


def read_kubeconfig(document: Document, *, base: str | None) -> tuple[Kubeconfig, list[Problem]]:
    reading = ConfigReader(document)
    fields = reading.root
    _check_version(fields)
    _extensions(fields)
    preferences = fields.section("preferences")
    preferences.ignore("colors")
    _extensions(preferences)
    config = Kubeconfig(
        current_context=fields.string("current-context"),
        contexts=_by_name(fields, "contexts", lambda name, item: _context(name, item.section("context"))),
        clusters=_by_name(fields, "clusters", lambda name, item: _cluster(name, item.section("cluster"), base)),
        users=_by_name(fields, "users", lambda name, item: _user(name, item.section("user"), base)),
        current_context_place=fields.place("current-context"),
    )
    return replace(config, unknown_fields=reading.unknown_fields()), reading.problems


def _check_version(fields: ConfigSection) -> None:
    if fields.string("apiVersion") not in ("", "v1"):
        fields.problem("unknown apiVersion", "apiVersion", "a kubeconfig has apiVersion v1")
    if fields.string("kind") not in ("", "Config"):
        fields.problem("this is not a kubeconfig", "kind", "a kubeconfig has kind Config")


def _by_name(fields: ConfigSection, key: str, build: Callable[[str, ConfigSection], T]) -> dict[str, T]:
    entries: dict[str, T] = {}
    for item in fields.sections(key):
        name = item.string("name")
        if name in entries:
            item.problem(f"duplicate entry {name!r}", "name")
        entries.setdefault(name, build(name, item))
    return entries


def _extensions(fields: ConfigSection) -> dict[str, Json]:
    extensions: dict[str, Json] = {}
    for item in fields.sections("extensions"):
        name, extension = item.string("name"), item.plain("extension")
        # Like kubectl: an empty extension does not reserve its name.
        if extensions.get(name) is not None:
            item.problem(f"duplicate entry {name!r}", "name")
        extensions[name] = extension
    return extensions


def _context(name: str, fields: ConfigSection) -> Context:
    _extensions(fields)
    return Context(
        name,
        cluster=fields.string("cluster"),
        user=fields.string("user"),
        namespace=fields.string("namespace"),
        place=fields.place(),
    )


def _cluster(name: str, fields: ConfigSection, base: str | None) -> Cluster:
    return Cluster(
        name,
        server=fields.string("server"),
        tls_server_name=fields.string("tls-server-name"),
        insecure_skip_tls_verify=fields.boolean("insecure-skip-tls-verify"),
        certificate_authority=_path(fields, "certificate-authority", base),
        certificate_authority_data=fields.base64("certificate-authority-data"),
        proxy_url=fields.string("proxy-url"),
        disable_compression=fields.boolean("disable-compression"),
        exec_extension=_extensions(fields).get(EXEC_EXTENSION),
        place=fields.place(),
    )


def _user(name: str, fields: ConfigSection, base: str | None) -> User:
    extensions = _extensions(fields)
    exec_fields = fields.optional_section("exec")
    exec_config = None if exec_fields is None else _exec(exec_fields, base)
    env_from = values_from(fields, partial(_resolve, base=base))
    if env_from and exec_config is None:
        fields.problem("there are variables for an exec plugin, and no exec plugin", "extensions")
    return User(
        name,
        client_certificate=_path(fields, "client-certificate", base),
        client_certificate_data=fields.base64("client-certificate-data"),
        client_key=_path(fields, "client-key", base),
        client_key_data=_key_data(fields),
        device_key=_device_key(fields, extensions.get(CLIENT_KEY_EXTENSION), base),
        token=_secret(fields, "token"),
        token_file=_path(fields, "tokenFile", base),
        username=fields.string("username"),
        password=_secret(fields, "password"),
        impersonate=_impersonation(fields),
        exec=None if exec_config is None else replace(exec_config, env_from=env_from),
        auth_provider=_auth_provider(fields),
        signing=signing_of(fields, partial(_resolve, base=base)),
        place=fields.place(),
    )


def _exec(fields: ConfigSection, base: str | None) -> ExecConfig:
    version, command = fields.string("apiVersion"), fields.string("command")
    return ExecConfig(
        api_version=version,
        # A bare name is looked up in PATH; anything else is a path relative to the kubeconfig.
        command=_resolve(command, base) if os.sep in command else command,
        args=fields.strings("args"),
        env=tuple(map(_variable, fields.sections("env"))),
        install_hint=printable(fields.string("installHint")),
        provide_cluster_info=fields.boolean("provideClusterInfo"),
        interactive_mode=fields.string("interactiveMode") or ("IfAvailable" if version in _MODE_OPTIONAL else ""),
        place=fields.place(),
        command_place=fields.place("command"),
    )


def _variable(item: ConfigSection) -> tuple[str, str]:
    name, value = item.string("name"), item.string("value")
    if "valueFrom" in item:
        item.problem("valueFrom takes no effect here", "valueFrom", ENV_HINT)
    # The operating system ends the name at the first equals sign, and the policy must check the effective name.
    name, equals, more = name.partition("=")
    return name, more + equals + value if equals else value


def _impersonation(fields: ConfigSection) -> Impersonation:
    extra = fields.section("as-user-extra")
    return Impersonation(
        user=fields.string("as"),
        uid=fields.string("as-uid"),
        groups=fields.strings("as-groups"),
        extra=tuple((key, extra.strings(key)) for key in extra),
    )


def _auth_provider(fields: ConfigSection) -> AuthProvider | None:
    provider = fields.optional_section("auth-provider")
    if provider is None:
        return None
    config = provider.section("config")
    settings = tuple((key, config.string(key)) for key in config)
    return AuthProvider(provider.string("name"), settings, provider.place())


def _secret(fields: ConfigSection, key: str) -> Secret | None:
    text = fields.string(key)
    return Secret(text) if text else None


def _key_data(fields: ConfigSection) -> Secret | None:
    data = fields.base64("client-key-data")
    try:
        return Secret(data.decode()) if data else None
    except UnicodeDecodeError:
        fields.problem("it is not a PEM text", "client-key-data")
        return None


def _device_key(fields: ConfigSection, extension: Json, base: str | None) -> KeyAddress | None:
    if extension is None:
        return None
    text = extension.get("key") if isinstance(extension, dict) else None
    if not isinstance(text, str) or not isinstance(extension, dict) or set(extension) != {"key"}:
        hint = "write it as extension: {key: 'pkcs11:...'}"
        fields.problem(f"the extension {CLIENT_KEY_EXTENSION} has something else than a key", "extensions", hint)
        return None
    try:
        return parse_address(text, Path(base or ""))
    except ValueError as error:
        fields.problem(f"the key of {CLIENT_KEY_EXTENSION} cannot be used: {error}", "extensions")
        return None


def _path(fields: ConfigSection, key: str, base: str | None) -> str | None:
    path = fields.string(key)
    return _resolve(path, base) if path else None


def _resolve(path: str, base: str | None) -> str:
    if base is None or os.path.isabs(path):
        return path
    return os.path.normpath(os.path.join(base, path))
