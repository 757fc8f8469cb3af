"""The rules of `lint` about mirrors: what a runtime would pass over in silence, and mirrors without a credential.

    hosts-dir, registries.conf -> Mirrored (registry, mirror, place) -> is there a pattern for the mirror?

`lint_hosts_dir` and `lint_registries_conf` have the rules of each format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ostiary.core.text import printable
from ostiary.registry.check.lint import Lint
from ostiary.registry.check.lint_hosts_dir import lint_hosts_dir
from ostiary.registry.check.lint_reading import LintFinding, Severity, WrittenPattern, WrittenProviders
from ostiary.registry.check.lint_registries_conf import lint_registries_conf
from ostiary.registry.check.mirror_findings import Mirrored
from ostiary.registry.matching.image_match import matches


def lint_mirrors(config: Lint | None, *, hosts_dir: str | None = None, registries_conf: str | None = None) -> Lint:
    """*config*, what `lint` said of the providers, and beside it the findings about the mirrors.

    Without *config* it is not looked for credentials.
    """
    files: list[str] = []
    findings: list[LintFinding] = []
    mirrored: list[Mirrored] = []
    parts = [] if hosts_dir is None else [*lint_hosts_dir(hosts_dir)]
    parts += [] if registries_conf is None else [lint_registries_conf(registries_conf)]
    for part in parts:
        files += part.files
        findings += part.findings
        mirrored += part.mirrored
    if config is None:
        return Lint(tuple(files), True, tuple(dict.fromkeys(findings)))
    contents = WrittenProviders()
    for file in config.files:
        contents.read(file)
    findings += credential_findings(mirrored, contents.patterns)
    return replace(config, files=(*config.files, *files), findings=(*config.findings, *dict.fromkeys(findings)))


def credential_findings(mirrored: Iterable[Mirrored], patterns: Sequence[WrittenPattern]) -> Iterator[LintFinding]:
    """Each mirror for which no provider would be asked."""
    for each in dict.fromkeys(mirrored):
        if any(_may_match(pattern, each.mirror) for pattern in patterns):
            continue
        of_registry = [pattern for pattern in patterns if each.registry and _may_match(pattern, each.registry)]
        fix = f'add "{printable(each.mirror)}" to the matchImages of the provider that knows it'
        if of_registry:
            pattern = of_registry[0]
            message = (
                f'"{pattern.shown}" of provider {printable(pattern.provider)} matches {printable(each.registry)} and '
                f"never its mirror {printable(each.mirror)}, for which no provider is asked"
            )
            yield LintFinding(Severity.WARNING, "pattern-misses-mirror", each.place, message, fix)
        else:
            message = f"no provider of the configuration is asked for the mirror {printable(each.mirror)}"
            yield LintFinding(Severity.WARNING, "mirror-without-credential", each.place, message, fix)


def _may_match(pattern: WrittenPattern, name: str) -> bool:
    """Whether *pattern* matches some image whose name begins with *name*."""
    address = pattern.address()
    if address is None:
        return False
    host, _, path = name.partition("/")
    written, _, pattern_path = pattern.text.partition("/")
    if not matches(written, host, any_port=pattern.any_port):
        return False
    path, pattern_path = path.rstrip("/"), pattern_path.rstrip("/")
    return path.startswith(pattern_path) or pattern_path.startswith(path)
