"""Find the kubeconfig files and merge them, by kubectl's rules.

load     $KUBECONFIG or ~/.kube/config -> Kubeconfig
loads    a text -> Kubeconfig
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ostiary.core.yaml import CLIENTCMD, Source, parse, read
from ostiary.errors import ConfigurationError
from ostiary.kubeconfig.document import read_kubeconfig
from ostiary.kubeconfig.model import Kubeconfig
from ostiary.model import Problem

log = logging.getLogger("ostiary.client")


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> Kubeconfig:
    """Load the file at *path*, else the merged files of ``$KUBECONFIG``, else ``~/.kube/config``.

    Only an explicit *path* must exist. One unusable file fails the load, and the error lists the errors of all files.
    """
    environ = os.environ if environ is None else environ
    if path is not None:
        return _load_files([os.fspath(path)], must_exist=True)
    listed = environ.get("KUBECONFIG", "")
    if not listed:
        return _load_files(_default_files(environ, home))
    config = _load_files(dict.fromkeys(filter(None, listed.split(os.pathsep))))
    if not config.files:
        log.warning("no kubeconfig found: %s", ", ".join(config.missing_files) or "KUBECONFIG names no file")
    return config


def loads(text: Source, *, name: str | None = None) -> Kubeconfig:
    """Load a kubeconfig from a text. Relative paths in it stay unchanged. *name* is used in errors."""
    config, problems = read_kubeconfig(parse(text, file=name, dialect=CLIENTCMD), base=None)
    if problems:
        raise _unusable(problems, "config-invalid")
    return replace(config, files=() if name is None else (name,))


def merge(configs: Iterable[Kubeconfig]) -> Kubeconfig:
    """Merge kubeconfigs. The first entry of a name wins, unmerged; so does the first current-context that is set."""
    merged = Kubeconfig()
    for config in configs:
        first_that_chooses = merged if merged.current_context else config
        merged = Kubeconfig(
            current_context=first_that_chooses.current_context,
            contexts={**config.contexts, **merged.contexts},
            clusters={**config.clusters, **merged.clusters},
            users={**config.users, **merged.users},
            files=merged.files + config.files,
            missing_files=merged.missing_files + config.missing_files,
            unknown_fields=merged.unknown_fields + config.unknown_fields,
            current_context_place=first_that_chooses.current_context_place,
        )
    return merged


def _default_files(environ: Mapping[str, str], home: Path | None) -> list[str]:
    try:
        return [str((home or Path(environ.get("HOME") or Path.home())) / ".kube" / "config")]
    except RuntimeError:
        # A container may run as a user id without a home directory.
        return []


def _load_files(paths: Iterable[str], *, must_exist: bool = False) -> Kubeconfig:
    configs: list[Kubeconfig] = []
    problems: list[Problem] = []
    codes: list[str] = []
    for path in paths:
        try:
            config, mistakes = read_kubeconfig(
                read(path, dialect=CLIENTCMD), base=os.path.dirname(os.path.abspath(path))
            )
            configs.append(replace(config, files=(path,)))
        except ConfigurationError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not must_exist:
                configs.append(Kubeconfig(missing_files=(path,)))
                continue
            mistakes = list(error.problems)
            codes.append(error.code)
        problems += mistakes
    if problems:
        raise _unusable(problems, codes[0] if codes else "config-invalid")
    return merge(configs)


def _unusable(problems: Sequence[Problem], code: str) -> ConfigurationError:
    return ConfigurationError("the kubeconfig cannot be used", problems=problems, code=code)
