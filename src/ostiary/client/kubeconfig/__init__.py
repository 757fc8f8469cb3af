"""Kubeconfigs: find the files, merge them, choose a context, and check the choice.

    load     $KUBECONFIG or ~/.kube/config -> Kubeconfig      (loads: the same from memory)
    select   Kubeconfig + what the caller asks for -> Selection, checked
    choose   both, or the service account of the pod: what the rest of the client calls

Every rule here is kubectl's. A `Selection` says which server and which user; `connection` makes TLS and
credentials of it. Nothing is run and no credential file is read here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ostiary.client.kubeconfig.in_cluster import DEFAULT_NAMESPACE, SERVICE_ACCOUNT, find_service_account
from ostiary.client.kubeconfig.validation import cluster_problems, unused_fields, user_problems
from ostiary.client.server_address import is_secure_server
from ostiary.core.config import CLIENTCMD, Document, Fields, Json, Reading, Source, parse, read
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem, Secret

log = logging.getLogger("ostiary.client")

T = TypeVar("T")
# The name of the cluster extension that is handed to an exec plugin.
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
# Before v1, interactiveMode could be left out.
_MODE_OPTIONAL = ("client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1")


# --- what a kubeconfig says: text is "" when absent; paths, bytes and secrets are None ---


@dataclass(frozen=True, slots=True)
class ExecConfig:
    """An exec plugin as configured. Two are equal if they run the same, wherever they stand."""

    api_version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""
    place: Place = field(default=Place(), compare=False)
    command_place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class AuthProvider:
    """What kubectl had before exec plugins: a name, and settings that may hold tokens."""

    name: str
    config: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    place: Place = field(default=Place(), compare=False)

    def get(self, key: str) -> str:
        return dict(self.config).get(key, "")


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Whom the requests are made as: ``as``, ``as-uid``, ``as-groups`` and ``as-user-extra``."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str | None = None
    certificate_authority_data: bytes | None = field(default=None, repr=False)
    # A proxy's address may hold a password.
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    exec_extension: Json = field(default=None, repr=False, hash=False)
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class User:
    name: str
    client_certificate: str | None = None
    client_certificate_data: bytes | None = field(default=None, repr=False)
    client_key: str | None = None
    client_key_data: Secret | None = None
    token: Secret | None = None
    token_file: str | None = None
    username: str = ""
    password: Secret | None = None
    impersonate: Impersonation = Impersonation()
    exec: ExecConfig | None = None
    auth_provider: AuthProvider | None = None
    place: Place = field(default=Place(), compare=False)

    @property
    def has_certificate(self) -> bool:
        return bool(self.client_certificate or self.client_certificate_data)

    @property
    def has_key(self) -> bool:
        return bool(self.client_key or self.client_key_data)

    @property
    def uses_exec(self) -> bool:
        """Whether the exec plugin signs the requests: any static credential beats it, as with kubectl."""
        return self.exec is not None and not (self.has_header or (self.has_certificate and self.has_key))

    @property
    def has_header(self) -> bool:
        """Whether a token or a username signs the requests. As with kubectl, the password may be empty."""
        return bool(self.token or self.token_file or self.username)


@dataclass(frozen=True, slots=True)
class Context:
    name: str
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One file, or several merged. `unknown_fields` are ignored, and may be typing mistakes."""

    current_context: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    unknown_fields: tuple[Place, ...] = ()
    current_context_place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the caller sets in place of the kubeconfig's values; None leaves a value as it is."""

    server: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: bytes | None = field(default=None, repr=False)
    proxy_url: str | None = field(default=None, repr=False)
    disable_compression: bool | None = None
    client_certificate: str | None = None
    client_certificate_data: bytes | None = field(default=None, repr=False)
    client_key: str | None = None
    client_key_data: Secret | None = None
    token: Secret | None = None
    token_file: str | None = None
    username: str | None = None
    password: Secret | None = None
    impersonate: Impersonation | None = None
    namespace: str | None = None


NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class Selection:
    """One validated choice: the server to talk to, and as whom."""

    context_name: str
    cluster: Cluster
    user: User
    namespace: str = DEFAULT_NAMESPACE


# --- find and merge ---


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> Kubeconfig:
    """The file at *path*, or else those of ``$KUBECONFIG`` merged, or else ``~/.kube/config``.

    Only a *path* that was asked for must exist. One file that cannot be used spoils the load, and the
    error lists the mistakes of all of them.
    """
    environ = os.environ if environ is None else environ
    if path is not None:
        return _load_files([os.fspath(path)], must_exist=True)
    listed = environ.get("KUBECONFIG", "")
    if not listed:
        return _load_files(_default_files(environ, home))
    config = _load_files(dict.fromkeys(filter(None, listed.split(os.pathsep))))
    if not config.files:
        log.warning("no kubeconfig found: %s", ", ".join(config.missing_files) or "KUBECONFIG names no file")
    return config


def loads(text: Source, *, name: str | None = None) -> Kubeconfig:
    """A kubeconfig that is not a file: relative paths in it stay as they are. *name* stands in errors."""
    config, problems = _kubeconfig(parse(text, file=name, dialect=CLIENTCMD), base=None)
    if problems:
        raise _unusable(problems, "config-invalid")
    return replace(config, files=() if name is None else (name,))


def merge(configs: Iterable[Kubeconfig]) -> Kubeconfig:
    """Of entries with one name the first counts, whole; so does the first current-context that is set."""
    merged = Kubeconfig()
    for config in configs:
        chosen = merged if merged.current_context else config
        merged = Kubeconfig(
            current_context=chosen.current_context,
            contexts={**config.contexts, **merged.contexts},
            clusters={**config.clusters, **merged.clusters},
            users={**config.users, **merged.users},
            files=merged.files + config.files,
            missing_files=merged.missing_files + config.missing_files,
            unknown_fields=merged.unknown_fields + config.unknown_fields,
            current_context_place=chosen.current_context_place,
        )
    return merged


def _default_files(environ: Mapping[str, str], home: Path | None) -> list[str]:
    try:
        return [str((home or Path(environ.get("HOME") or Path.home())) / ".kube" / "config")]
    except RuntimeError:
        # A container may run as a user id that has no home.
        return []


def _load_files(paths: Iterable[str], *, must_exist: bool = False) -> Kubeconfig:
    configs: list[Kubeconfig] = []
    problems: list[Problem] = []
    codes: list[str] = []
    for path in paths:
        try:
            config, mistakes = _kubeconfig(read(path, dialect=CLIENTCMD), base=os.path.dirname(os.path.abspath(path)))
            configs.append(replace(config, files=(path,)))
        except ConfigurationError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not must_exist:
                configs.append(Kubeconfig(missing_files=(path,)))
                continue
            mistakes = list(error.problems)
            codes.append(error.code)
        problems += mistakes
    if problems:
        raise _unusable(problems, codes[0] if codes else "config-invalid")
    return merge(configs)


def _unusable(problems: Sequence[Problem], code: str) -> ConfigurationError:
    return ConfigurationError("the kubeconfig cannot be used", problems=problems, code=code)


# --- one document; *base* is what its relative paths are relative to ---


def _kubeconfig(document: Document, *, base: str | None) -> tuple[Kubeconfig, list[Problem]]:
    reading = Reading(document)
    fields = reading.root
    _check_version(fields)
    _extensions(fields)
    preferences = fields.section("preferences")
    preferences.ignore("colors")
    _extensions(preferences)
    config = Kubeconfig(
        current_context=fields.string("current-context"),
        contexts=_named(fields, "contexts", lambda name, item: _context(name, item.section("context"))),
        clusters=_named(fields, "clusters", lambda name, item: _cluster(name, item.section("cluster"), base)),
        users=_named(fields, "users", lambda name, item: _user(name, item.section("user"), base)),
        current_context_place=fields.place("current-context"),
    )
    return replace(config, unknown_fields=reading.unknown_fields()), reading.problems


def _check_version(fields: Fields) -> None:
    if fields.string("apiVersion") not in ("", "v1"):
        fields.problem("unknown apiVersion", "apiVersion", "a kubeconfig has apiVersion v1")
    if fields.string("kind") not in ("", "Config"):
        fields.problem("this is not a kubeconfig", "kind", "a kubeconfig has kind Config")


def _named(fields: Fields, key: str, build: Callable[[str, Fields], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for item in fields.sections(key):
        name = item.string("name")
        if name in found:
            item.problem(f"duplicate entry {name!r}", "name")
        found.setdefault(name, build(name, item))
    return found


def _extensions(fields: Fields) -> dict[str, Json]:
    extensions: dict[str, Json] = {}
    for item in fields.sections("extensions"):
        name, extension = item.string("name"), item.plain("extension")
        # As kubectl: an extension that holds nothing does not take the name.
        if extensions.get(name) is not None:
            item.problem(f"duplicate entry {name!r}", "name")
        extensions[name] = extension
    return extensions


def _context(name: str, fields: Fields) -> Context:
    _extensions(fields)
    return Context(
        name,
        cluster=fields.string("cluster"),
        user=fields.string("user"),
        namespace=fields.string("namespace"),
        place=fields.place(),
    )


def _cluster(name: str, fields: Fields, base: str | None) -> Cluster:
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


def _user(name: str, fields: Fields, base: str | None) -> User:
    _extensions(fields)
    exec_fields = fields.optional_section("exec")
    return User(
        name,
        client_certificate=_path(fields, "client-certificate", base),
        client_certificate_data=fields.base64("client-certificate-data"),
        client_key=_path(fields, "client-key", base),
        client_key_data=_key_data(fields),
        token=_secret(fields, "token"),
        token_file=_path(fields, "tokenFile", base),
        username=fields.string("username"),
        password=_secret(fields, "password"),
        impersonate=_impersonation(fields),
        exec=None if exec_fields is None else _exec(exec_fields, base),
        auth_provider=_auth_provider(fields),
        place=fields.place(),
    )


def _exec(fields: Fields, base: str | None) -> ExecConfig:
    version, command = fields.string("apiVersion"), fields.string("command")
    return ExecConfig(
        api_version=version,
        # A bare name is looked up in PATH; anything else is a path, relative to the kubeconfig.
        command=_resolved(command, base) if os.sep in command else command,
        args=fields.strings("args"),
        env=tuple(_variable(item.string("name"), item.string("value")) for item in fields.sections("env")),
        install_hint=printable(fields.string("installHint")),
        provide_cluster_info=fields.boolean("provideClusterInfo"),
        interactive_mode=fields.string("interactiveMode") or ("IfAvailable" if version in _MODE_OPTIONAL else ""),
        place=fields.place(),
        command_place=fields.place("command"),
    )


def _variable(name: str, value: str) -> tuple[str, str]:
    # To a process, the name ends at the first equals sign. A policy must judge the name that takes effect.
    name, equals, more = name.partition("=")
    return name, more + equals + value if equals else value


def _impersonation(fields: Fields) -> Impersonation:
    extra = fields.section("as-user-extra")
    return Impersonation(
        user=fields.string("as"),
        uid=fields.string("as-uid"),
        groups=fields.strings("as-groups"),
        extra=tuple((key, extra.strings(key)) for key in extra),
    )


def _auth_provider(fields: Fields) -> AuthProvider | None:
    provider = fields.optional_section("auth-provider")
    if provider is None:
        return None
    config = provider.section("config")
    settings = tuple((key, config.string(key)) for key in config)
    return AuthProvider(provider.string("name"), settings, provider.place())


def _secret(fields: Fields, key: str) -> Secret | None:
    text = fields.string(key)
    return Secret(text) if text else None


def _key_data(fields: Fields) -> Secret | None:
    data = fields.base64("client-key-data")
    try:
        return Secret(data.decode()) if data else None
    except UnicodeDecodeError:
        fields.problem("it is not a PEM text", "client-key-data")
        return None


def _path(fields: Fields, key: str, base: str | None) -> str | None:
    path = fields.string(key)
    return _resolved(path, base) if path else None


def _resolved(path: str, base: str | None) -> str:
    if base is None or os.path.isabs(path):
        return path
    return os.path.normpath(os.path.join(base, path))


# --- choose ---


def choose(
    source: str | os.PathLike[str] | Kubeconfig | None = None,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    overrides: Overrides = NO_OVERRIDES,
    policy_problems: Sequence[Problem] = (),
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Selection:
    """What this program talks to: the kubeconfig's choice, or the pod's own cluster if nothing was chosen.

    A kubeconfig that chooses something, rightly or wrongly, always wins over the pod's cluster; so does
    a *source*, which is a path or a kubeconfig that is loaded already.
    """
    environ = os.environ if environ is None else environ
    config = source if isinstance(source, Kubeconfig) else load(source, environ=environ, home=home)
    asked = source is not None or context or cluster or user or overrides.server
    found = None if asked or config.current_context else in_cluster(environ, service_account)
    if found is not None:
        return _checked(_overridden(found, overrides), policy_problems)
    selection = select(
        config,
        context=context,
        cluster=cluster,
        user=user,
        overrides=overrides,
        policy_problems=policy_problems,
    )
    _warn_of_unused(config.users.get(selection.user.name, selection.user))
    _warn_of_unknown(config, selection)
    return selection


def _warn_of_unused(user: User) -> None:
    """Of the kubeconfig's own user: what the caller gives in place of its fields is no mistake of it."""
    for name, reason in unused_fields(user):
        log.warning("user %r: %s in the kubeconfig is not used: %s", user.name, name, reason)


def _warn_of_unknown(config: Kubeconfig, selection: Selection) -> None:
    """kubectl goes on without what it does not know: a token with a typing mistake in its name, or a missing user."""
    user = selection.user
    if user.name and user.name not in config.users and not (user.has_header or user.has_certificate):
        log.warning("user %r is not in the kubeconfig: requests go out without a credential", user.name)
    context = config.contexts.get(selection.context_name)
    chosen = [part.place for part in (context, selection.cluster, user) if part is not None]
    for place in config.unknown_fields:
        if any(_is_in_entry(place, entry) for entry in chosen):
            log.warning("the kubeconfig has an unknown field, which takes no effect: %s", printable(str(place)))


def _is_in_entry(place: Place, entry: Place) -> bool:
    """Whether *place* is in the same entry of a list as *entry*, or outside of all lists."""
    same = "[" not in place.path or place.path.partition("]")[0] == entry.path.partition("]")[0]
    return same and place.file == entry.file


def in_cluster(environ: Mapping[str, str], root: Path = SERVICE_ACCOUNT) -> Selection | None:
    """The cluster that this program runs in, as its pod's service account; None outside of a cluster."""
    found = find_service_account(environ, root)
    if found is None:
        return None
    name, place = "in-cluster", Place(str(root))
    return Selection(
        context_name=name,
        cluster=Cluster(name, found.server, certificate_authority=found.certificate_authority, place=place),
        user=User(name, token_file=found.token_file, place=place),
        namespace=found.namespace,
    )


def select(
    config: Kubeconfig,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    overrides: Overrides = NO_OVERRIDES,
    policy_problems: Sequence[Problem] = (),
) -> Selection:
    """The context named, or the current one, with its parts exchanged as asked, and checked.

    *policy_problems* is what is wrong with the program's own plugin policy; it counts if the user has
    an exec plugin. Raises `ConfigurationError` with everything that is wrong with the choice.
    """
    name = context or config.current_context
    chosen = config.contexts.get(name, Context(name))
    cluster_name, user_name = cluster or chosen.cluster, user or chosen.user
    problems = [
        *_context_problems(config, context, needed=not (cluster or overrides.server)),
        *_asked_problems(config, "user", user, config.users),
        *_asked_problems(config, "cluster", cluster, config.clusters),
    ]
    if not problems and not overrides.server and cluster_name not in config.clusters:
        problems.append(_cluster_problem(config, chosen))
    if problems:
        raise ConfigurationError("no cluster is configured", problems=problems, code="config-not-found")
    selection = Selection(
        context_name=name,
        cluster=config.clusters.get(cluster_name, Cluster(cluster_name, place=chosen.place)),
        # A context may name a user that is not there: kubectl then goes on without credentials.
        user=config.users.get(user_name, User(user_name, place=chosen.place)),
        namespace=chosen.namespace or DEFAULT_NAMESPACE,
    )
    return _checked(_overridden(selection, overrides), policy_problems)


def _checked(selection: Selection, policy_problems: Sequence[Problem]) -> Selection:
    # Without TLS no credential is sent, so its files are not asked for.
    is_secure = is_secure_server(selection.cluster.server)
    problems = [*user_problems(selection.user, is_secure=is_secure), *cluster_problems(selection.cluster)]
    if selection.user.exec is not None:
        problems += policy_problems
    if problems:
        summary = f"context {selection.context_name!r} cannot be used"
        raise ConfigurationError(summary, problems=problems, code="config-invalid")
    return selection


# --- what was asked for and is not there ---


def _context_problems(config: Kubeconfig, asked: str | None, *, needed: bool) -> list[Problem]:
    name = asked or config.current_context
    if name:
        place = _sources(config) if asked else config.current_context_place
        return [] if name in config.contexts else [_not_there("context", name, config.contexts, place)]
    if not needed:
        return []
    if config.contexts:
        message = f"no context is selected and current-context is not set; known contexts: {_names(config.contexts)}"
        return [Problem(message, _sources(config), "choose a context")]
    return [Problem("there is no configuration", _sources(config), "name a kubeconfig, or set KUBECONFIG")]


def _asked_problems(config: Kubeconfig, kind: str, asked: str | None, there: Iterable[str]) -> list[Problem]:
    return [_not_there(kind, asked, there, _sources(config))] if asked and asked not in there else []


def _cluster_problem(config: Kubeconfig, context: Context) -> Problem:
    place = Place(context.place.file, f"{context.place.path}.cluster", context.place.line)
    if not context.cluster:
        return Problem(f"context {context.name!r} names no cluster", place)
    return _not_there("cluster", context.cluster, config.clusters, place)


def _not_there(kind: str, name: str, there: Iterable[str], place: Place) -> Problem:
    return Problem(f"unknown {kind} {name!r}; known: {_names(there)}", place)


def _names(names: Iterable[str]) -> str:
    return printable(", ".join(sorted(names))) or "none"


def _sources(config: Kubeconfig) -> Place:
    return Place(", ".join((*config.files, *config.missing_files)) or None)


# --- overrides ---


def _overridden(selection: Selection, overrides: Overrides) -> Selection:
    return replace(
        selection,
        cluster=_overridden_cluster(selection.cluster, overrides),
        user=_overridden_user(selection.user, overrides),
        namespace=overrides.namespace or selection.namespace,
    )


def _overridden_cluster(cluster: Cluster, overrides: Overrides) -> Cluster:
    cluster = _with(cluster, overrides, "server", "proxy_url", "disable_compression", "insecure_skip_tls_verify")
    # The kubeconfig's name and authority belong to the kubeconfig's server and way of trust.
    if overrides.server or overrides.tls_server_name:
        cluster = replace(cluster, tls_server_name=overrides.tls_server_name or "")
    authority, data = overrides.certificate_authority, overrides.certificate_authority_data
    if authority or data or overrides.insecure_skip_tls_verify:
        cluster = replace(
            cluster,
            insecure_skip_tls_verify=bool(overrides.insecure_skip_tls_verify),
            certificate_authority=authority,
            certificate_authority_data=data,
        )
    return cluster


def _overridden_user(user: User, overrides: Overrides) -> User:
    user = _with(user, overrides, "username", "password")
    for pair in (
        ("client_certificate", "client_certificate_data"),
        ("client_key", "client_key_data"),
        ("token", "token_file"),
    ):
        if any(getattr(overrides, name) for name in pair):
            user = replace(user, **{name: getattr(overrides, name) for name in pair})
    if (asked := overrides.impersonate) is not None:
        user = replace(user, impersonate=_with(user.impersonate, asked, "user", "uid", "groups", "extra"))
    return user


Part = TypeVar("Part", Cluster, User, Impersonation)


def _with(part: Part, given: object, *names: str) -> Part:
    """*part* with those of the named fields that *given* sets."""
    values = {name: getattr(given, name) for name in names}
    return replace(part, **{name: value for name, value in values.items() if value not in (None, "", ())})
