"""Load ``gateway.yaml``. Every error is reported with its position, before the gateway listens.

    load              path -> ConfigReader -> GatewayFile (as declared) -> providers -> rules -> GatewayConfig
    default_config    no file: one user, who may do everything, from this machine only

Providers are built through the catalog. The server opens them later.
"""

from __future__ import annotations

import os
from pathlib import Path

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigReader, Document, parse, read
from ostiary_gateway.config import sections
from ostiary_gateway.config.api_groups import check_api_plugins
from ostiary_gateway.config.audit import Audit
from ostiary_gateway.config.checks import check
from ostiary_gateway.config.extauth_loading import check_doors
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.gateway_file import API_VERSION, KIND, GatewayFile
from ostiary_gateway.config.providers import Builder
from ostiary_gateway.config.upstreams import upstreams
from ostiary_gateway.config.values import origin_text
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.settings.declare import read_settings

_DEFAULT = f"""
apiVersion: {API_VERSION}
kind: {KIND}
store: {{type: memory}}
identity: [{{name: me, type: single_user}}]
authorization: {{chain: [{{name: everything, type: allow_all}}]}}
"""


def load(
    path: str | os.PathLike[str],
    *,
    text: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    built: list[object] | None = None,
    counts: ImmediateCounts | None = None,
) -> GatewayConfig:
    """Load the configuration file at *path*. Raises `ConfigurationError` with all its errors.

    *text* is the content of the file from an earlier read, and used instead of reading it. The providers are added to
    *built* even on failure, so that the caller can close them. They share the counters in *counts*.
    """
    document = read(path) if text is None else parse(text.encode("utf-8", "surrogateescape"), file=os.fspath(path))
    # The directory of the given path, not of a link's target: files of a mounted ConfigMap are links into a directory
    # that every change replaces.
    return _config(document, Path(path).absolute().parent, clock, built, counts)


def loads(
    source: str | bytes,
    *,
    name: str | None = None,
    directory: str | os.PathLike[str] = ".",
    clock: Clock = SYSTEM_CLOCK,
) -> GatewayConfig:
    """Load a configuration that is not a file. *name* is used in errors; relative paths are relative to *directory*."""
    return _config(parse(source, file=name), Path(directory).absolute(), clock)


def default_config(*, clock: Clock = SYSTEM_CLOCK) -> GatewayConfig:
    """Return the configuration without a file: the user of this process may do everything, from this machine."""
    return loads(_DEFAULT, name="the built-in configuration", clock=clock)


def _config(
    document: Document,
    directory: Path,
    clock: Clock,
    built: list[object] | None = None,
    counts: ImmediateCounts | None = None,
) -> GatewayConfig:
    reading = ConfigReader(document)
    config = read_sections(reading, directory, clock, built, counts)
    if document.more:
        reading.root.problem("the file has a second YAML document", None, "remove it: only the first document is read")
    reading.finish("the gateway cannot be started with this configuration", strict=True)
    # Without a store there was an error, and `finish` has raised.
    assert config is not None
    return config


def read_sections(
    reading: ConfigReader,
    directory: Path,
    clock: Clock = SYSTEM_CLOCK,
    built: list[object] | None = None,
    counts: ImmediateCounts | None = None,
) -> GatewayConfig | None:
    """Read the document once. The errors are in *reading*. None if the store could not be built."""
    root = reading.root
    file = read_settings(GatewayFile, root, directory)
    external_url = sections.external_url(file, root)
    builder = Builder(directory, clock, built, counts, external_url)
    audit = file.audit or Audit(stdout=True)
    identities = sections.identities(file, builder)
    store = sections.store(file, builder)
    served = upstreams(file.upstreams, builder, directory)
    admission = sections.admission(file, builder)
    parts = {
        "external_url": external_url,
        "authorities_pem": sections.authorities_pem(file),
        "look": sections.look(file, root, identities),
        "groups": sections.groups(file, builder, identities),
        "authorization": sections.authorization(file.authorization, builder, identities),
        "upstreams": served,
        "admission": admission,
        "audit_sinks": sections.audit(audit, builder, root),
    }
    if file.webhooks.callers.names and sections.lacks_client_certificates(file.listen, root):
        reading.add(sections.NO_CLIENT_CERTIFICATES, reading.document.place("webhooks", "callers", "names"))
    check_doors(file, served, admission)
    check_api_plugins(file.api_plugins, served)
    if store is None:
        return None
    config = GatewayConfig(
        listen=file.listen,
        health=file.health.address,
        store=store,
        tokens=file.tokens,
        identity=tuple(provider for provider in identities.values() if provider is not None),
        webhooks=file.webhooks,
        doors=file.doors,
        api_plugins=file.api_plugins,
        audit=audit,
        limits=file.limits,
        log=file.log,
        service_accounts=file.service_accounts,
        api_tokens=file.api_tokens,
        pages=file.pages,
        step_up=file.step_up,
        tracing=file.tracing,
        issuer=file.issuer,
        directory=directory,
        owner="" if file.external_url is None else origin_text(file.external_url),
        document=reading.document,
        **parts,  # type: ignore[arg-type]
    )
    check(config, root, insecure_allow_all=file.insecure_allow_all)
    return config
