"""Read the plugin policy that the user configured for kubectl in the kuberc. Fails closed.

`client.connection` uses it if the application passes no policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from ostiary.client.exec.policy import DENY_ALL, AllowAll, PluginPolicy, policy_of, policy_problems
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

POLICY_FIELD, ALLOWLIST_FIELD = "credentialPluginPolicy", "credentialPluginAllowlist"
KUBERC_V1BETA1 = "kubectl.config.k8s.io/v1beta1"
KUBERC_VERSIONS = (KUBERC_V1BETA1, "kubectl.config.k8s.io/v1alpha1")


def from_kuberc(
    path: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    home: str | os.PathLike[str] | None = None,
) -> PluginPolicy:
    """Return the plugin policy of *path*, else of ``$KUBERC``, else of ``~/.kube/kuberc`` if that exists.

    Stricter than kubectl, which only warns about an unusable default kuberc and then runs everything: here any kuberc
    that exists but cannot be used raises `ConfigurationError`.
    """
    variables = os.environ if environ is None else environ
    if _is_switched_off(variables):
        if path is None:
            return AllowAll()
        message = "a kuberc file was given, but the environment disables kuberc"
        file = os.fspath(path)
        raise _kuberc_invalid(file, [Problem(message, Place(file), "unset KUBERC and KUBECTL_KUBERC")])
    given_path = path or variables.get("KUBERC")
    file = os.fspath(given_path or _default_kuberc(variables, home))
    if not given_path and not _is_there(file):
        return AllowAll()
    preference = _first_preference(file)
    return AllowAll() if preference is None else _policy_in(preference, file)


def _is_switched_off(variables: Mapping[str, str]) -> bool:
    return variables.get("KUBERC") == "off" or variables.get("KUBECTL_KUBERC", "").lower() == "false"


def _default_kuberc(variables: Mapping[str, str], home: str | os.PathLike[str] | None) -> Path:
    return Path(home or variables.get("HOME") or os.path.expanduser("~"), ".kube", "kuberc")


def _is_there(file: str) -> bool:
    try:
        # Not `exists`, which also returns False for a dangling link and for a directory that we cannot enter.
        os.lstat(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _kuberc_invalid(file, [Problem(f"cannot be read: {error.strerror}", Place(file))]) from None
    return True


def _first_preference(file: str) -> Mapping[object, object] | None:
    """Return the first Preference document of a supported version, or None if the file is empty."""
    others = 0
    for document in _documents(file):
        if isinstance(document, dict) and _is_preference(document):
            return document
        others += document is not None
    if others:
        message = f"there is no Preference of {' or '.join(KUBERC_VERSIONS)} in it"
        raise _kuberc_invalid(file, [Problem(message, Place(file))])
    return None


def _is_preference(document: Mapping[object, object]) -> bool:
    return document.get("kind") == "Preference" and document.get("apiVersion") in KUBERC_VERSIONS


def _documents(file: str) -> Iterator[object]:
    """Yield the YAML documents of *file* lazily: documents after the one that is used may be invalid."""
    try:
        yield from yaml.safe_load_all(Path(file).read_bytes())
    except OSError as error:
        raise _kuberc_invalid(file, [Problem(f"cannot be read: {error.strerror}", Place(file))]) from None
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise _kuberc_invalid(file, [Problem(f"is not YAML: {error.problem}", Place(file, line=line))]) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _kuberc_invalid(file, [Problem("is not YAML", Place(file))]) from None


def _policy_in(preference: Mapping[object, object], file: str) -> PluginPolicy:
    problems = list(_misplaced_fields(preference, file))
    kind = preference.get(POLICY_FIELD) or ""
    if not isinstance(kind, str):
        problems.append(Problem("must be text", Place(file, POLICY_FIELD)))
        kind = DENY_ALL
    entries, mistakes = _entries_in(preference.get(ALLOWLIST_FIELD), Place(file, ALLOWLIST_FIELD))
    problems += mistakes or policy_problems(kind, entries, Place(file, ALLOWLIST_FIELD))
    if problems:
        raise _kuberc_invalid(file, problems)
    return policy_of(kind, entries)


def _misplaced_fields(preference: Mapping[object, object], file: str) -> Iterator[Problem]:
    """Report fields that kubectl ignores although their author meant to restrict something."""
    policy_fields = (POLICY_FIELD, ALLOWLIST_FIELD)
    for name in map(str, preference):
        if name in policy_fields and preference["apiVersion"] != KUBERC_V1BETA1:
            hint = f"write apiVersion: {KUBERC_V1BETA1}"
            yield Problem(f"unknown field in {preference['apiVersion']}", Place(file, name), hint)
        elif name not in policy_fields and name.lower().startswith("cred"):
            yield Problem("unknown field", Place(file, name), f"did you mean {' or '.join(policy_fields)}?")


def _entries_in(value: object, at: Place) -> tuple[list[str] | None, list[Problem]]:
    if value is None:
        return None, []
    if not isinstance(value, list):
        return None, [Problem("must be a list", at)]
    entries, problems = [], []
    for number, item in enumerate(value):
        place = Place(at.file, f"{at.path}[{number}]")
        mistakes = list(_item_problems(item, place))
        problems += mistakes
        if not mistakes:
            entries.append(item.get("command") or item.get("name") or "")
    return entries, problems


def _item_problems(item: object, place: Place) -> Iterator[Problem]:
    if not isinstance(item, dict) or not all(isinstance(value, str) for value in item.values()):
        yield Problem("must be an object of the form {command: <name or path>}", place)
        return
    unknown = sorted(str(name) for name in item if name not in ("command", "name"))
    if unknown:
        # An unknown field may restrict the entry further.
        yield Problem(f"unknown field {', '.join(unknown)}", place)
    if item.get("command") and item.get("name") and item["command"] != item["name"]:
        yield Problem("command and its old spelling, name, differ", place, "keep command")


def _kuberc_invalid(file: str, problems: Sequence[Problem]) -> ConfigurationError:
    return ConfigurationError(f"the plugin policy of {file} cannot be used", problems=problems, code="kuberc-invalid")
