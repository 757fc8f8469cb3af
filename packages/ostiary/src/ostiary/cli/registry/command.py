"""``ostiary registry``: the credentials for an image, why they are found or not, and how to fix errors."""

from __future__ import annotations

import argparse
from functools import partial

from ostiary.cli.arguments import JSON, UsageError, add_output, environment, seconds
from ostiary.cli.authorities import authorities
from ostiary.cli.output import print_json, print_note, print_report
from ostiary.cli.registry.daemon import RELOAD_HELP, STATUS_HELP, configure_reload, configure_status
from ostiary.cli.registry.migrate import MIGRATE_EXAMPLES, MIGRATE_HELP, configure_migrate
from ostiary.cli.registry.mirrors import add_mirrors, explain_pull, print_pull_lookup
from ostiary.cli.registry.options import (
    RegistryChoice,
    add_service_account,
    choice,
    config_bin_dir,
    config_file,
    configured_provider,
    has_config,
)
from ostiary.cli.registry.output import as_json, print_explanation, print_lint, print_lookup, print_probe
from ostiary.cli.registry.serve import SERVE_EXAMPLES, SERVE_HELP, configure_serve
from ostiary.cli.registry.switch import DISABLE_HELP, ENABLE_HELP, configure_disable, configure_enable
from ostiary.conformance.credential_provider import SAMPLE_IMAGE, check
from ostiary.conformance.credential_provider import SECONDS as CHECK_SECONDS
from ostiary.conformance.lint import lint
from ostiary.conformance.lint_mirrors import lint_mirrors
from ostiary.conformance.probe import SECONDS, ProbeSettings, probe
from ostiary.core.provider_switches import Switches
from ostiary.registry.explain import explain
from ostiary.registry.image_name import parse_image_name
from ostiary.registry.keyring import Lookup
from ostiary.registry.mirrors.endpoints import lookup_endpoints
from ostiary.registry.mirrors.plan import Mirrors
from ostiary.registry.user_config import BIN_DIR_VARIABLE, CONFIG_VARIABLE, SEARCH_PATH_VARIABLE
from ostiary.wire.credential_provider import API_VERSIONS, V1, V1ALPHA1, V1BETA1, ProviderDialect

GET_HELP = """\
Print the credentials for an image, in the order in which the kubelet would try them. Providers are run.

THE CREDENTIALS ARE SECRETS, and this prints them: keep them out of logs, tickets and shared screens.
`ostiary registry explain` and `ostiary registry probe` never show a password.

With --hosts-dir or --registries-conf: the hosts that a container runtime asks for the image, mirrors first, each
with the credentials for the image's name there.

Exit code 1 if there is none.
"""
EXPLAIN_HELP = """\
Explain which credentials an image gets, and why: its normalised name, every pattern of every provider
with the first reason why it does not match, the cache, what was run and its result, the keys of each answer,
and the order in which the credentials are tried. Passwords are not shown.

With --hosts-dir or --registries-conf: in which order a container runtime asks which hosts, with which credentials,
and why; and what becomes of the kubelet's own.

Exit code 0 if a credential is found, or with --no-run if a provider matches; else 1.
"""
LINT_HELP = """\
Report errors and likely mistakes in a provider configuration, each with its line and its fix. A configuration that
does not load is checked as well. With --hosts-dir or --registries-conf the mirrors are checked, too, and whether the
configuration has a provider for each.

Exit code 1 if there are errors; warnings and hints alone give 0.
"""
CHECK_HELP = """\
Check a credential provider, written in any language, against the rules of the kubelet. It is run about
six times: in each version of the protocol, for an image that does not exist, with an invalid
service account token, and with empty stdin. Nothing that it prints is shown.

Exit code 1 if a rule is broken; warnings alone give 0.
"""
CHECK_EXAMPLES = """\
examples:
  ostiary registry check --image registry.example.com/team/app ./my-provider --verbose
  ostiary registry check --config providers.yaml --bin-dir /opt/providers --image registry.example.com/app acme
"""
PROBE_HELP = """\
Try each credential for an image at the registry, without pulling: get the challenge, then a token if the registry
needs one, and print which credentials the registry accepts. Passwords are not shown. They are sent
to the registry and to the token service that it names, and over plain HTTP only on this machine or with --plain-http.

Exit code 1 if no credential is accepted.
"""
# Like docker-credential-ostiary: see registry/user_config.py.
CONFIG_DEFAULT = f"${CONFIG_VARIABLE}, else ~/.config/ostiary/registry.yaml if it is there"
BIN_DIR_DEFAULT = f" (default: ${BIN_DIR_VARIABLE}; without --config also bin beside the configuration)"


VERBS = "get|explain|lint|check|probe|migrate|serve|status|reload|disable|enable"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar=VERBS)
    _configure_get(verbs.add_parser("get", help="print the credentials for an image", description=GET_HELP))
    _configure_explain(
        verbs.add_parser("explain", help="explain which credentials an image gets", description=EXPLAIN_HELP)
    )
    _configure_lint(verbs.add_parser("lint", help="report errors in a configuration", description=LINT_HELP))
    _configure_check(
        verbs.add_parser("check", help="check any provider", description=CHECK_HELP, epilog=CHECK_EXAMPLES)
    )
    _configure_probe(verbs.add_parser("probe", help="try the credentials at the registry", description=PROBE_HELP))
    migrate = verbs.add_parser(
        "migrate", help="rewrite a configuration as v1", description=MIGRATE_HELP, epilog=MIGRATE_EXAMPLES
    )
    _add_config(migrate)
    configure_migrate(migrate)
    _configure_daemon(verbs)
    configure_disable(verbs.add_parser("disable", help="switch a provider off", description=DISABLE_HELP))
    configure_enable(verbs.add_parser("enable", help="switch a provider on again", description=ENABLE_HELP))


def _configure_daemon(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = verbs.add_parser(
        "serve", help="keep credentials in memory for all who pull", description=SERVE_HELP, epilog=SERVE_EXAMPLES
    )
    _add_config(serve, default=f"with --listen: {CONFIG_DEFAULT}")
    _add_timeout(serve)
    configure_serve(serve)
    configure_status(verbs.add_parser("status", help="show the daemon", description=STATUS_HELP))
    configure_reload(verbs.add_parser("reload", help="have it read its files again", description=RELOAD_HELP))


def _configure_get(parser: argparse.ArgumentParser) -> None:
    _add_sources(parser)
    _add_docker_logins(parser)
    add_mirrors(parser, "for each host that is asked, with")
    add_output(parser)
    parser.add_argument("image", metavar="IMAGE")
    parser.set_defaults(run=get)


def _configure_explain(parser: argparse.ArgumentParser) -> None:
    _add_sources(parser)
    parser.add_argument("--no-run", action="store_true", help="start no provider; say which ones would run")
    add_mirrors(parser, "for each host that is asked, with")
    add_output(parser)
    parser.add_argument("image", metavar="IMAGE")
    parser.set_defaults(run=explain_image)


def _configure_lint(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    add_mirrors(parser, "also check")
    add_output(parser)
    parser.set_defaults(run=lint_config)


def _configure_check(parser: argparse.ArgumentParser) -> None:
    _add_config(parser, default="none, and COMMAND is a program")
    _add_search_path(parser)
    names = [version.rpartition("/")[2] for version in API_VERSIONS]
    parser.add_argument(
        "--api-version",
        action="append",
        choices=names,
        help="a version that it should support, the most important one first; may be repeated (default: all)",
    )
    parser.add_argument(
        "--image",
        default=SAMPLE_IMAGE,
        metavar="IMAGE",
        help="an image that it has a credential for (default: %(default)s)",
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="add a variable to its environment"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=CHECK_SECONDS, metavar="SECONDS", help="time limit for one run"
    )
    add_output(parser)
    parser.add_argument("command", metavar="COMMAND", help="the provider; with --config, its name there")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=check_provider)


def _configure_probe(parser: argparse.ArgumentParser) -> None:
    _add_sources(parser)
    _add_docker_logins(parser)
    parser.add_argument("--manifest", action="store_true", help="also check that the image exists")
    parser.add_argument("--plain-http", action="store_true", help="use plain HTTP, also to other machines")
    parser.add_argument(
        "--ca-file", metavar="FILE", help="the CA certificates to trust instead of the system's, in PEM"
    )
    parser.add_argument(
        "--registry-timeout",
        type=seconds,
        default=SECONDS,
        metavar="SECONDS",
        help="time limit for one response of the registry (default: %(default)g)",
    )
    add_output(parser)
    parser.add_argument("image", metavar="IMAGE")
    parser.set_defaults(run=probe_image)


def _add_config(parser: argparse.ArgumentParser, *, default: str = CONFIG_DEFAULT) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"the provider configuration: a file, or a directory of them (default: {default})",
    )
    parser.add_argument("--bin-dir", metavar="DIR", help=f"where the executables of the providers are{BIN_DIR_DEFAULT}")


def _add_search_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--search-path",
        action="store_true",
        help="look for executables that are not in --bin-dir on PATH, which the kubelet does not do "
        f"(default: ${SEARCH_PATH_VARIABLE}=1)",
    )


def _add_docker_logins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--docker-logins",
        action="store_true",
        help="after these, the logins of docker and podman on this machine: auth.json, config.json, their helpers",
    )


def _add_sources(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    _add_search_path(parser)
    parser.add_argument(
        "--docker-config", metavar="DIR", help="look for config.json here first, before the places of the kubelet"
    )
    parser.add_argument("--no-docker-config", action="store_true", help="do not read any docker configuration")
    parser.add_argument(
        "--pull-secret", action="append", default=[], metavar="FILE", help="a Secret, as kubectl get -o yaml prints it"
    )
    add_service_account(parser)
    _add_timeout(parser)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="time limit for one provider (default: %(default)g)",
    )


# --- credentials ---


def _lookup(registry_choice: RegistryChoice, image: str) -> Lookup:
    """Return the credentials for *image*. Prints on stderr what failed, was skipped or has no effect."""
    keyring, pod = registry_choice.keyring, registry_choice.pod
    lookup = keyring.lookup(image, pod=pod, pull_secrets=registry_choice.pull_secrets)
    if pod is not None and not any(each.config.token_attributes for each in keyring.matching_providers(image)):
        print_note("--service-account has no effect: no provider for this image has tokenAttributes")
    for failure in lookup.failures:
        print_note(str(failure))
        if failure.error.hint:
            print_note(f"hint: {failure.error.hint}")
    for skipped in lookup.skipped:
        print_note(f"{skipped.provider}: {skipped.reason}")
    return lookup


def get(arguments: argparse.Namespace) -> int:
    registry_choice = choice(arguments)
    if registry_choice.mirrors is not None:
        return _get_at_endpoints(registry_choice, registry_choice.mirrors, arguments)
    lookup = _lookup(registry_choice, arguments.image)
    print_lookup(lookup, as_json=arguments.output == JSON)
    if not lookup.found:
        print_note("there is no credential for this image; ostiary registry explain shows the reason")
    return 0 if lookup.found else 1


def _get_at_endpoints(registry_choice: RegistryChoice, mirrors: Mirrors, arguments: argparse.Namespace) -> int:
    lookup = lookup_endpoints(
        registry_choice.keyring,
        mirrors,
        arguments.image,
        pod=registry_choice.pod,
        pull_secrets=registry_choice.pull_secrets,
    )
    print_pull_lookup(lookup, in_json=arguments.output == JSON)
    return 0 if lookup.has_credential else 1


def explain_image(arguments: argparse.Namespace) -> int:
    registry_choice = choice(arguments)
    explain_name = partial(
        explain,
        registry_choice.keyring,
        pod=registry_choice.pod,
        pull_secrets=registry_choice.pull_secrets,
        docker_config=registry_choice.docker_config,
        tokens=registry_choice.tokens,
        run=not arguments.no_run,
    )
    if registry_choice.mirrors is not None:
        in_json = arguments.output == JSON
        return 0 if explain_pull(registry_choice.mirrors, arguments.image, explain_name, in_json=in_json) else 1
    explanation = explain_name(arguments.image)
    if arguments.output == JSON:
        print_json(as_json(explanation))
    else:
        print_explanation(explanation)
    return 0 if explanation.candidates or not explanation.complete else 1


def probe_image(arguments: argparse.Namespace) -> int:
    registry_choice = choice(arguments)
    settings = ProbeSettings(
        plain_http=arguments.plain_http,
        authorities_pem=authorities(arguments.ca_file),
        manifest=arguments.manifest,
        seconds=arguments.registry_timeout,
    )
    lookup = _lookup(registry_choice, arguments.image)
    report = probe(parse_image_name(arguments.image), lookup.found, settings=settings)
    if arguments.output == JSON:
        print_json(as_json(report) | {"ok": report.ok})
    else:
        print_probe(report)
    return 0 if report.ok else 1


# --- configurations and providers ---


def lint_config(arguments: argparse.Namespace) -> int:
    hosts_dir, registries_conf = arguments.hosts_dir, arguments.registries_conf
    if (hosts_dir or registries_conf) and not has_config(arguments):
        findings = lint_mirrors(None, hosts_dir=hosts_dir, registries_conf=registries_conf)
    else:
        findings = lint(config_file(arguments), bin_dir=config_bin_dir(arguments), switches=Switches())
        findings = lint_mirrors(findings, hosts_dir=hosts_dir, registries_conf=registries_conf)
    if arguments.output == JSON:
        print_json(as_json(findings) | {"ok": findings.ok})
    else:
        print_lint(findings)
    return 0 if findings.ok else 1


def check_provider(arguments: argparse.Namespace) -> int:
    command, variables = (arguments.command, *arguments.arguments), environment(arguments.env)
    versions = [f"{V1.rpartition('/')[0]}/{name}" for name in arguments.api_version or ()]
    if arguments.config is not None:
        provider = configured_provider(arguments)
        command = (provider.provider.executable, *provider.config.args, *arguments.arguments)
        variables = {**dict(provider.config.env), **variables}
        versions = versions or [provider.config.api_version]
        if provider.config.dialect is ProviderDialect.PROPOSAL:
            raise UsageError(
                f"provider {arguments.command!r} uses the protocol of the first proposal, which is not checked",
                hint="ostiary registry migrate rewrites the configuration",
            )
    report = check(
        command,
        image=arguments.image,
        env=variables,
        versions=versions or (V1, V1BETA1, V1ALPHA1),
        seconds=arguments.timeout,
    )
    print_report(report, as_json=arguments.output == JSON)
    return 0 if report.ok else 1
