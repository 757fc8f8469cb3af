"""Parsed documents whose values know their positions, and the dialects by which programs read them.

The same bytes mean different things to different readers. The kubelet reads what begins with a brace as JSON only;
kubectl reads every kubeconfig as YAML, in which ``{a: 1,}`` is a mapping. Only the call that reads a file names the
dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one program reads its files.

    `strict`: unknown and repeated fields are errors, unless `ConfigReader.finish` is called with another setting.
    `json`: text that begins with ``{`` is JSON only. `yaml`: other text is YAML; without it, all text is JSON.
    `go_yaml`: YAML with the peculiarities of Go's library. A ``<<`` overwrites the fields before it and counts as
    repeating them; text after the first document is ignored. Without it, explicit fields win, as specified by YAML, and
    an invalid rest is an error.
    """

    name: str
    strict: bool = False
    json: bool = True
    yaml: bool = True
    go_yaml: bool = True


# Our own files: YAML that no other program reads.
OSTIARY = Dialect("ostiary", json=False, go_yaml=False)
# CredentialProviderConfig, and the responses of credential providers.
KUBELET = Dialect("kubelet", strict=True)
# Kubernetes API machinery without strictness: audit policies, ExecCredential, manifests.
KUBERNETES = Dialect("kubernetes")
# kubeconfig files: sigs.k8s.io/yaml for any text, JSON included. Field names are case-sensitive.
CLIENTCMD = Dialect("clientcmd", json=False)
# config.json and .dockercfg: Go's encoding/json. `fold` compares its field names.
DOCKER = Dialect("docker", yaml=False)


def fold(name: str) -> str:
    """Fold *name* as encoding/json does to compare names of struct fields without regard to case.

    For field names of ASCII letters only. The long s and the Kelvin sign are the two other characters that Go considers
    equal to one.
    """
    return name.replace("\u017f", "s").lower()


# Values with their positions.

Scalar: TypeAlias = "bool | int | float | str | None"
Json: TypeAlias = "Scalar | list[Json] | dict[str, Json]"

MAX_DEPTH = 100


@dataclass(slots=True)
class Node:
    """A value and the line on which it starts. Lists and mappings hold nodes, so each value inside has its own line.

    `repeated` holds every pair of a JSON object with a repeated key, in order; otherwise it is empty.
    """

    value: Scalar | list[Node] | dict[str, Node]
    line: int | None = None
    repeated: tuple[tuple[str, Node], ...] = ()

    def pairs(self) -> Iterable[tuple[str, Node]]:
        """Return the fields of a mapping in the order of the text, including those that a later one replaces."""
        return self.repeated or (self.value.items() if isinstance(self.value, dict) else ())


@dataclass(frozen=True, slots=True)
class Document:
    """One document. `more` is set if another one follows in the same file, which YAML allows."""

    root: Node
    file: str | None = None
    duplicates: tuple[Place, ...] = ()
    more: bool = False
    dialect: Dialect = OSTIARY

    @property
    def value(self) -> Json:
        """Return the document as plain values. Of a repeated key the last value counts."""
        return plain(self.root)

    def place(self, *steps: str | int) -> Place:
        """Return the position of the value at *steps*; for an absent value, where it would be."""
        node, path = self.root, ""
        for step in steps:
            path = join(path, step)
            node = _child(node, step) or node
        return Place(self.file, path, node.line)


def plain(node: Node) -> Json:
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def join(path: str, step: str | int) -> str:
    """Return the dotted path of a value inside the one at *path*: ``users[1].user.exec``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if not re.fullmatch(r"[\w-]+", step):
        return f"{path}[{printable(json.dumps(step, ensure_ascii=False))}]"
    return f"{path}.{step}" if path else step


def path_of(steps: Iterable[str | int]) -> str:
    path = ""
    for step in steps:
        path = join(path, step)
    return path


def syntax_error(message: str, place: Place, hint: str | None = None) -> ConfigurationError:
    problem = Problem(message, place, hint)
    return ConfigurationError("a configuration is not usable YAML or JSON", problems=[problem], code="config-syntax")


def too_deep(place: Place) -> ConfigurationError:
    return syntax_error(f"it is nested more than {MAX_DEPTH} levels deep", place)


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(str(step))
    if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None
