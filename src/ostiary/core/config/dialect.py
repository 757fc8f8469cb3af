"""Which rules a text is read by: those of the program that the file is written for.

The same bytes mean different things to different readers. The kubelet takes what begins with a brace for JSON and
nothing else; kubectl reads every kubeconfig as YAML, in which ``{a: 1,}`` is a mapping. A loader names its dialect
when it reads, and nothing else of it has to know.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one program reads its files.

    `strict`: unknown and repeated fields are mistakes; `Reading.finish` follows it unless told otherwise.
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
