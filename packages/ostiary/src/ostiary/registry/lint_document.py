"""The readable parts of a provider configuration for `lint`, even if the kubelet would reject the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ostiary.core.text import printable
from ostiary.core.yaml import KUBELET, MAX_BYTES, Document, Json, parse_all
from ostiary.errors import ConfigurationError
from ostiary.model import Place
from ostiary.registry.image_name import ImageAddress, UnparsableAddress, parse_address
from ostiary.registry.kubelet.document import PROPOSAL_KINDS

_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")


class Severity(Enum):
    """ERROR: it does not work as written. WARNING: it likely differs from what was intended."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class LintFinding:
    severity: Severity
    rule: str
    place: Place
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class WrittenPattern:
    """A pattern. `text` is without userinfo, which matching ignores and which may hold a password.

    `any_port`: the dialect of the proposal, in which the port counts only if the pattern has one.
    """

    text: str
    place: Place
    provider: str
    any_port: bool = False

    def address(self) -> ImageAddress | None:
        try:
            return parse_address(self.text)
        except UnparsableAddress:
            return None

    @property
    def shown(self) -> str:
        return printable(self.text)


def without_userinfo(pattern: str) -> str:
    """Return *pattern* for display: without the text before an @ of its host."""
    return _USERINFO.sub(r"\1", pattern)


@dataclass(frozen=True, slots=True)
class WrittenProvider:
    name: str
    fields: Mapping[str, Json] = field(repr=False)
    document: Document
    index: int
    is_proposed: bool = False

    def place(self, *steps: str | int) -> Place:
        return self.document.place("providers", self.index, *steps)


class WrittenProviders:
    """Collects everything in the files that has the shape of a provider, and ignores the rest."""

    def __init__(self) -> None:
        self.providers: list[WrittenProvider] = []
        self.patterns: list[WrittenPattern] = []
        self.findings: list[LintFinding] = []

    def read(self, file: str) -> None:
        try:
            with open(file, "rb") as stream:
                documents = parse_all(stream.read(MAX_BYTES + 1), file=file, dialect=KUBELET)
            first = next(documents, None)
        except (OSError, ConfigurationError):
            # `load` has reported it.
            return
        if first is None:
            return
        self._take(first)
        if first.more:
            self.findings.append(_second_document(documents, file))

    def _take(self, document: Document) -> None:
        root = document.value
        if not isinstance(root, dict):
            return
        is_proposed = root.get("kind") in PROPOSAL_KINDS
        if is_proposed:
            message = "it is written in the dialect of the first proposal, which no kubelet reads"
            self._add(Severity.WARNING, "proposal-dialect", document.place("kind"), message, "ostiary registry migrate")
        providers = root.get("providers")
        for index, fields in enumerate(providers if isinstance(providers, list) else ()):
            if isinstance(fields, dict):
                self._take_provider(
                    WrittenProvider(str(fields.get("name") or ""), fields, document, index, is_proposed)
                )

    def _take_provider(self, provider: WrittenProvider) -> None:
        self.providers.append(provider)
        for key in ("matchImages", "imageMatchers"):
            patterns = provider.fields.get(key)
            for number, text in enumerate(patterns if isinstance(patterns, list) else ()):
                if isinstance(text, str):
                    place, any_port = provider.place(key, number), provider.is_proposed
                    self.patterns.append(WrittenPattern(without_userinfo(text), place, provider.name, any_port))

    def _add(self, severity: Severity, rule: str, place: Place, message: str, fix: str) -> None:
        self.findings.append(LintFinding(severity, rule, place, message, fix))


def _second_document(documents: Iterator[Document], file: str) -> LintFinding:
    try:
        line = next(documents).root.line
    except ConfigurationError:
        # The field is not used, so an error in it does not matter.
        line = None
    message = "only the first YAML document of a file is read, and this one is silently ignored"
    fix = "put it into a file of its own, in a directory that is given as the configuration"
    return LintFinding(Severity.WARNING, "second-document", Place(file, line=line), message, fix)
