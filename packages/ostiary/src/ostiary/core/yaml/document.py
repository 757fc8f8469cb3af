"""Which rules a text is read by: those of the program that the file is written for.

The same bytes mean different things to different readers. The kubelet takes what begins with a brace for JSON and
nothing else; kubectl reads every kubeconfig as YAML, in which ``{a: 1,}`` is a mapping. A loader names its dialect
when it reads, and nothing else of it has to know.
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

    `strict`: unknown and repeated fields are mistakes; `ConfigReader.finish` follows it unless told otherwise.
    `json`: what begins with ``{`` is JSON and nothing else. `yaml`: anything else is YAML; without it, all is JSON.
    `go_yaml`: YAML has the peculiarities of Go's library. A ``<<`` overwrites the fields before it, and counts as a
    repetition of them; what follows the first document is not looked at. Otherwise the fields that are written out
    win, as YAML specifies it, and a broken rest is a mistake.
    """

    name: str
    strict: bool = False
    json: bool = True
    yaml: bool = True
    go_yaml: bool = True


# Our own files, which are YAML: nobody else reads them.
OSTIARY = Dialect("ostiary", json=False, go_yaml=False)
# CredentialProviderConfig, and the answers of credential providers.
KUBELET = Dialect("kubelet", strict=True)
# The API machinery without strictness: audit policies, ExecCredential, manifests.
KUBERNETES = Dialect("kubernetes")
# kubeconfig files: sigs.k8s.io/yaml for any text, JSON included. Field names are case-sensitive.
CLIENTCMD = Dialect("clientcmd", json=False)
# config.json and .dockercfg: Go's encoding/json. `fold` compares its field names.
DOCKER = Dialect("docker", yaml=False)


def fold(name: str) -> str:
    """*name* as encoding/json compares the names of struct fields: without regard to case.

    Only for names of ASCII letters. The long s and the Kelvin sign are the two other characters that Go takes for one.
    """
    return name.replace("\u017f", "s").lower()


# Values that know their line, and the document that they form. Made by the two readers, asked by `fields`.

Scalar: TypeAlias = "bool | int | float | str | None"
Json: TypeAlias = "Scalar | list[Json] | dict[str, Json]"

MAX_DEPTH = 100


@dataclass(slots=True)
class Node:
    """A value and the line it began at. Lists and mappings hold nodes, so each value inside has its line.

    `repeated` holds every pair of a JSON object in which a key stands twice, in their order; else it is empty.
    """

    value: Scalar | list[Node] | dict[str, Node]
    line: int | None = None
    repeated: tuple[tuple[str, Node], ...] = ()

    def pairs(self) -> Iterable[tuple[str, Node]]:
        """The fields of a mapping in the order of the text, with those that a later one replaces."""
        return self.repeated or (self.value.items() if isinstance(self.value, dict) else ())


@dataclass(frozen=True, slots=True)
class Document:
    """One document. `more` tells that something follows it in the same file, which YAML allows."""

    root: Node
    file: str | None = None
    duplicates: tuple[Place, ...] = ()
    more: bool = False
    dialect: Dialect = OSTIARY

    @property
    def value(self) -> Json:
        """The document as plain values. Of a key that stands twice, the last one counts."""
        return plain(self.root)

    def place(self, *steps: str | int) -> Place:
        """Where the value stands that *steps* lead to; for a value that is absent, where it would stand."""
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
    """The dotted path of a value inside the one at *path*: ``users[1].user.exec``."""
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
