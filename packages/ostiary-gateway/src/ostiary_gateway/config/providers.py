"""Builds the providers that a configuration names, through the catalog; called by `gateway.config.sections`.

Whatever goes wrong on the way is a mistake in the file, with its place: an unknown type, a package that is not
installed, a setting, a class that does not keep the contract.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ostiary.core.clock import Clock
from ostiary.core.entry_points import list_entries
from ostiary.core.yaml import ConfigReader, ConfigSection, Document, Node
from ostiary.errors import ConfigurationError
from ostiary_gateway import catalog
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.contract_violations import flaws
from ostiary_gateway.interfaces.lifecycle import Closes
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts


class Builder:
    """What it builds is added to *built*, whatever becomes of the configuration, for somebody to close."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        built: list[object] | None = None,
        counts: ImmediateCounts | None = None,
        external_url: str = "",
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._counts = counts
        self._external_url = external_url.rstrip("/")
        self._built = [] if built is None else built

    def build(self, plugin_type: str, fields: ConfigSection, *, name: str) -> Provider[Any] | None:
        """The provider whose ``type`` and settings stand in *fields*; None if there is a mistake in them."""
        type_name = fields.string("type")
        if type_name == "":
            _report_missing_type(plugin_type, fields)
            fields.ignore(*fields)
            return None
        return self._build(plugin_type, type_name, fields, name=name)

    def build_for_key(self, plugin_type: str, key: str, fields: ConfigSection) -> Provider[Any] | None:
        """The provider whose settings stand under a key that says its type; it has the key for a name."""
        type_name = catalog.type_for_key(plugin_type, key)
        if type_name is None:
            fields.problem("no installed package, or more than one, says which provider this key stands for", None)
            fields.ignore(*fields)
            return None
        return self._build(plugin_type, type_name, fields, name=key)

    def _build(self, plugin_type: str, type_name: str, fields: ConfigSection, *, name: str) -> Provider[Any] | None:
        try:
            context = catalog.Context(name, self._directory, self._clock, self._counts, self._external_url)
            instance = catalog.load(plugin_type, type_name).from_config(fields, context)
        except ConfigurationError as error:
            _report(error, fields)
        except Exception as error:
            # Neither its text nor its traceback: a foreign plugin may put a password into either.
            fields.problem(f"the provider cannot read its settings ({type(error).__name__})", "type")
        else:
            self._built.append(instance)
            for flaw in flaws(plugin_type, instance):
                fields.problem(f"it is not a valid {plugin_type} provider: {flaw.message}", "type", flaw.hint)
            return Provider(name, type_name, instance, fields.place(), fields)
        fields.ignore(*fields)
        return None

    def build_without_settings(
        self, plugin_type: str, type_name: str, fields: ConfigSection, key: str, *, name: str
    ) -> Provider[Any] | None:
        """The same for a type that stands alone, as a text under *key*."""
        empty = ConfigReader(Document(Node({"type": Node(type_name)})))
        provider = self.build(plugin_type, empty.root, name=name)
        for problem in empty.problems:
            fields.problem(problem.message, key, problem.hint)
        return provider


async def close_all(instances: Iterable[object]) -> None:
    """Close those that can be closed, each once. One that fails at it keeps nobody from going on."""
    for instance in {id(instance): instance for instance in instances}.values():
        closing = ability(instance, Closes)
        if closing is not None:
            with suppress(Exception):
                await closing.close()


def _report_missing_type(plugin_type: str, fields: ConfigSection) -> None:
    # What is no text has been reported as such.
    if fields.plain("type") in (None, ""):
        names = ", ".join(sorted({entry.name for entry in list_entries(plugin_type)}))
        fields.problem("the type is missing", "type", f"known types: {names}")


def _report(error: ConfigurationError, fields: ConfigSection) -> None:
    for problem in error.problems:
        fields.problem(f"{error.summary}: {problem}", None, problem.hint)
    if not error.problems:
        fields.problem(": ".join(filter(None, (error.summary, error.cause))), "type", error.hint)
