"""The mirror options of a command line, and the output for the hosts of a pull."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from ostiary.cli.arguments import UsageError
from ostiary.cli.output import Style, paint, print_json, print_note, rows
from ostiary.cli.registry.output import as_json, found_json, found_rows, print_candidates
from ostiary.core.text import printable
from ostiary.registry.explain import ImageExplanation
from ostiary.registry.mirrors.containerd import ContainerdHosts
from ostiary.registry.mirrors.endpoints import (
    EndpointExplanation,
    EndpointLookup,
    PullExplanation,
    PullLookup,
    explain_endpoints,
)
from ostiary.registry.mirrors.plan import Mirrors
from ostiary.registry.mirrors.registries_conf import RegistriesConf

WIDTH = 10


def add_mirrors(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--hosts-dir",
        metavar="DIR",
        help=f"{purpose} the mirrors of containerd: the directory of its hosts.toml files, as /etc/containerd/certs.d",
    )
    parser.add_argument(
        "--registries-conf",
        metavar="FILE",
        help=f"{purpose} the mirrors of podman, skopeo, buildah and CRI-O: a registries.conf, with drop-ins in FILE.d",
    )


def chosen_mirrors(arguments: argparse.Namespace) -> Mirrors | None:
    """Return the mirrors of ``--hosts-dir`` or ``--registries-conf``, or None."""
    if arguments.hosts_dir and arguments.registries_conf:
        hint = "a pull is by containerd or by another runtime: name the configuration of one"
        raise UsageError("--hosts-dir and --registries-conf cannot be combined", hint=hint)
    if arguments.hosts_dir:
        return ContainerdHosts(arguments.hosts_dir)
    return RegistriesConf(arguments.registries_conf) if arguments.registries_conf else None


# --- get ---


def print_pull_lookup(found: PullLookup, *, in_json: bool) -> None:
    """Print the endpoints with their credentials, including secrets."""
    for warning in found.plan.warnings:
        print_note(printable(f"{warning.place}: {warning.message}"))
    for each in found.endpoints:
        for failure in each.lookup.failures:
            print_note(f"{printable(each.endpoint.host)}: {failure}")
        for skipped in each.lookup.skipped:
            print_note(f"{printable(skipped.provider)}: {skipped.reason}")
    if in_json:
        print_json({"image": found.plan.image, "endpoints": [_endpoint_json(each) for each in found.endpoints]})
        return
    for number, each in enumerate(found.endpoints, 1):
        kind = "mirror" if each.endpoint.is_mirror else "registry"
        print(f"{number}. {kind} {printable(each.endpoint.address)}")
        if not each.lookup.found:
            print("   no credential")
        for credential in each.lookup:
            print(f"   {printable(credential.key)}, from {printable(str(credential.source))}")
            for row in rows(found_rows(credential), stream=sys.stdout, width=WIDTH):
                print(f"   {row}")


def _endpoint_json(each: EndpointLookup) -> dict[str, object]:
    return {
        "address": each.endpoint.address,
        "mirror": each.endpoint.is_mirror,
        "image": each.endpoint.repository,
        "credentials": [found_json(credential) for credential in each.lookup],
    }


# --- explain ---


def explain_pull(
    mirrors: Mirrors, image: str, explain_name: Callable[[str], ImageExplanation], *, in_json: bool
) -> bool:
    """Print the endpoints of *image* and their credentials. Returns whether there is a credential."""
    explanation = explain_endpoints(mirrors, image, explain_name)
    if in_json:
        print_json(as_json(explanation))
    else:
        _print_pull(explanation)
    return explanation.has_credential


def _print_pull(explanation: PullExplanation) -> None:
    print(f"image {printable(explanation.image)}, pulled by {explanation.runtime}")
    rows_of_pull = [("means", name) for name in explanation.names]
    rows_of_pull += [("warning", text) for text in explanation.warnings]
    for row in rows(rows_of_pull, stream=sys.stdout, width=WIDTH):
        print(row)
    for endpoint in explanation.endpoints:
        _print_endpoint(endpoint)
    print(f"\nwith the kubelet: {explanation.kubelet}")
    print_candidates(explanation.own_name)


def _print_endpoint(endpoint: EndpointExplanation) -> None:
    number = f"{endpoint.position}." if endpoint.position else paint("left out", Style.FAINT, sys.stdout)
    print(f"\n{number} {endpoint.address}")
    parts = [("why", endpoint.reason), ("over", endpoint.transport), ("where", endpoint.where)]
    if endpoint.kubelet_credential:
        parts.append(("kubelet's", f"credential for the image's own name: {endpoint.kubelet_credential}"))
    for row in rows(parts, stream=sys.stdout, width=WIDTH):
        print(row)
    if endpoint.explanation is not None:
        print_candidates(endpoint.explanation)
