"""``ostiary registry migrate``: convert an older configuration to the current CredentialProviderConfig."""

from __future__ import annotations

import argparse
import sys

import yaml

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.output import print_json, print_note
from ostiary.cli.registry.options import config_file
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.registry.kubelet.config import load
from ostiary.registry.kubelet.migrate import in_tree_providers, migrate, parse_flags, read_azure_identity
from ostiary.registry.kubelet.model import ProvidersConfig

MIGRATE_HELP = """\
Print a provider configuration as CredentialProviderConfig v1, also one in the dialect of the first proposal
(RegistryCredentialConfig). With --output json it is printed as JSON, which the kubelet reads as well.

With --kubelet-flags or --kubelet-flags-file, print the configuration that takes the place of the providers that were
inside the kubelet: of --cloud-provider aws, gce or azure, and --azure-container-registry-config. What has to be
done besides is told on stderr. A secret in a cloud configuration is not printed.
"""
MIGRATE_EXAMPLES = """\
examples:
  ostiary registry migrate --config old.yaml
  ostiary registry migrate --kubelet-flags='--cloud-provider=aws'
  ostiary registry migrate --kubelet-flags-file /var/lib/kubelet/kubeadm-flags.env
"""
LARGEST_FILE = 1 << 20


def configure_migrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubelet-flags", metavar="TEXT", help="the command line of an older kubelet")
    parser.add_argument(
        "--kubelet-flags-file", metavar="FILE", help="a file with it, such as kubeadm-flags.env or /etc/default/kubelet"
    )
    parser.add_argument(
        "--cloud-config",
        metavar="FILE",
        help="with these: the file of --azure-container-registry-config or --cloud-config, if it is elsewhere by now",
    )
    add_output(parser)
    parser.set_defaults(run=migrate_config)


def migrate_config(arguments: argparse.Namespace) -> int:
    config = _from_flags(arguments) if _flags(arguments) else load(config_file(arguments), bin_dir=arguments.bin_dir)
    text = migrate(config)
    for warning in config.warnings:
        print_note(str(warning))
    if arguments.output == JSON:
        print_json(yaml.safe_load(text))
    else:
        sys.stdout.write(text)
    return 0


def _flags(arguments: argparse.Namespace) -> bool:
    given = [option for option in ("kubelet_flags", "kubelet_flags_file", "config") if getattr(arguments, option)]
    if len(given) > 1:
        names = " and ".join(f"--{option.replace('_', '-')}" for option in given)
        raise UsageError(f"{names} cannot be combined", hint="leave one of them out")
    if arguments.cloud_config and not (arguments.kubelet_flags or arguments.kubelet_flags_file):
        raise UsageError("--cloud-config needs --kubelet-flags", hint="it is read for the flags of a kubelet")
    return bool(given) and given != ["config"]


def _from_flags(arguments: argparse.Namespace) -> ProvidersConfig:
    flags = parse_flags(arguments.kubelet_flags or _content(arguments.kubelet_flags_file))
    path = arguments.cloud_config or flags.azure_config
    if not path and flags.cloud_provider == "azure":
        path = flags.cloud_config
    is_azure = bool(flags.azure_config) or flags.cloud_provider == "azure"
    providers, notes = in_tree_providers(flags, read_azure_identity(path) if path and is_azure else None)
    for note in notes:
        print_note(note)
    if (arguments.cloud_config or flags.cloud_config) and not is_azure:
        print_note("the cloud configuration is not read: nothing in it was for image credentials")
    return ProvidersConfig(tuple(providers))


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "the kubelet's flags cannot be read",
            cause=getattr(error, "strerror", None) or "it is not UTF-8",
            where=printable(path),
            code="config-unreadable",
        ) from None
