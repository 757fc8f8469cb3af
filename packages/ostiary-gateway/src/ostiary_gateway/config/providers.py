"""Build the providers of a configuration through the catalog.

Every failure is reported as an error at its position in the file: an unknown type, a missing package, an invalid
setting, a class that violates its contract.
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
    """Build providers.

    They are added to *built* even if the configuration is rejected, so that the caller can close them.
    """

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
        """Build the provider with the ``type`` and settings in *fields*. None if they have an error."""
        type_name = fields.string("type")
        if type_name == "":
            _report_missing_type(plugin_type, fields)
            fields.ignore(*fields)
            return None
        return self._build(plugin_type, type_name, fields, name=name)

    def build_for_key(self, plugin_type: str, key: str, fields: ConfigSection) -> Provider[Any] | None:
        """Build the provider under a key that implies its type. The key is its name."""
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
            # Report neither message nor traceback: a third-party plugin may put a password into either.
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
        """Like `build`, but for a type given as plain text under *key*."""
        empty = ConfigReader(Document(Node({"type": Node(type_name)})))
        provider = self.build(plugin_type, empty.root, name=name)
        for problem in empty.problems:
            fields.problem(problem.message, key, problem.hint)
        return provider


async def close_all(instances: Iterable[object]) -> None:
    """Close each closable instance once. A failure does not prevent the others from being closed."""
    for instance in {id(instance): instance for instance in instances}.values():
        closing = ability(instance, Closes)
        if closing is not None:
            with suppress(Exception):
                await closing.close()


def _report_missing_type(plugin_type: str, fields: ConfigSection) -> None:
    # A value that is not text was already reported.
    if fields.plain("type") in (None, ""):
        names = ", ".join(sorted({entry.name for entry in list_entries(plugin_type)}))
        fields.problem("the type is missing", "type", f"known types: {names}")


def _report(error: ConfigurationError, fields: ConfigSection) -> None:
    for problem in error.problems:
        fields.problem(f"{error.summary}: {problem}", None, problem.hint)
    if not error.problems:
        fields.problem(": ".join(filter(None, (error.summary, error.cause))), "type", error.hint)
