"""The layout shows the architecture: imports point one way, and the public names are the listed ones.

Every import counts, wherever it stands: at the top of a module, inside a function, or for types alone.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import ostiary

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "packages/ostiary/src", ROOT / "packages/ostiary-gateway/src")

# From the bottom: a part imports only parts of lines above its own, and itself. Parts of one line are independent,
# except those of `TOGETHER`. A part is a folder or a module directly below the import package.
LAYERS = (
    ("ostiary.model",),
    ("ostiary.errors",),
    ("ostiary.core", "ostiary.keys"),
    ("ostiary.wire",),
    ("ostiary.kubeconfig",),
    ("ostiary.client",),
    ("ostiary.sdk",),
    ("ostiary.registry", "ostiary.exec_info"),
    ("ostiary.conformance",),
    ("ostiary.testing",),
    ("ostiary.cli",),
    ("ostiary.__main__",),
    ("ostiary_gateway.interfaces",),
    ("ostiary_gateway.wire",),
    ("ostiary_gateway.networks", "ostiary_gateway.sealing", "ostiary_gateway.capabilities", "ostiary_gateway.catalog"),
    ("ostiary_gateway.contract_violations", "ostiary_gateway.settings"),
    ("ostiary_gateway.observability",),
    ("ostiary_gateway.http1",),
    ("ostiary_gateway.sessions",),
    ("ostiary_gateway.limits",),
    ("ostiary_gateway.issuer",),
    ("ostiary_gateway.config",),
    ("ostiary_gateway.stores",),
    ("ostiary_gateway.authorization",),
    ("ostiary_gateway.audit",),
    ("ostiary_gateway.authentication",),
    ("ostiary_gateway.proxy",),
    ("ostiary_gateway.providers",),
    ("ostiary_gateway.accounts",),
    ("ostiary_gateway.replicas",),
    ("ostiary_gateway.login",),
    ("ostiary_gateway.api",),
    ("ostiary_gateway.extauth",),
    ("ostiary_gateway.middleware", "ostiary_gateway.policy"),
    ("ostiary_gateway.testing",),
    ("ostiary_gateway.server",),
    ("ostiary_gateway.local_proxy",),
    ("ostiary_gateway.cli",),
    ("ostiary_gateway.__main__",),
)
# A TLS context may be made with a key that is kept elsewhere, and keys need what everybody needs.
TOGETHER = {frozenset(("ostiary.core", "ostiary.keys"))}
# What the gateway takes from the other distribution: it is no client, and knows nothing of registries.
SHARED = {"ostiary.model", "ostiary.errors", "ostiary.core", "ostiary.keys", "ostiary.wire", "ostiary.testing"}
# The commands of the gateway share the form of those of the client, and its sessions; the loopback proxy is a client.
SHARED_BY_COMMANDS = {"ostiary.cli", "ostiary.client", "ostiary.kubeconfig"}
# Providers that build on another. Every other one needs `common` alone.
PROVIDERS = {
    "oidc": {"claims"},
    "google_groups": {"oidc"},
    "sso_cookie": {"claims", "oidc", "sso_cookie_settings"},
    "saml": {"claims", "oidc"},
    "trusted_header": {"claims", "client_certificate_reading", "oidc"},
    "client_certificate": {"claims", "client_certificate_reading"},
    "workload": {"claims", "oidc"},
    "sso_cookie_settings": {"oidc"},
    "htpasswd": {"htpasswd_settings"},
}


@cache
def modules() -> dict[str, Path]:
    """Every module of both packages, by its dotted name."""
    return {_dotted(path, source): path for source in SOURCES for path in sorted(source.rglob("*.py"))}


def _dotted(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> dict[str, set[str]]:
    """The modules of ours that each module imports."""
    return {name: set(imported_modules(path)) - {name} for name, path in modules().items()}


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                name = submodule if submodule in modules() else node.module
                if name in modules():
                    yield name
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())


def part_of(name: str) -> str:
    """The folder or module directly below the import package; the package itself for its `__init__`."""
    return ".".join(name.split(".")[:2])


def test_every_part_has_its_layer() -> None:
    parts = {part_of(name) for name in modules()} - {"ostiary", "ostiary_gateway"}
    assert sorted(part for layer in LAYERS for part in layer) == sorted(parts)


def test_imports_point_one_way() -> None:
    """E6, I1."""
    height = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    forbidden = []
    for name in modules():
        # The public names of `ostiary` come from the client; `from ostiary import __version__` reads the package alone.
        part = part_of("ostiary.client.x" if name == "ostiary" else name)
        for other in sorted(imports()[name] - {"ostiary", "ostiary_gateway"}):
            below = part_of(other)
            allowed = below == part or height[below] < height[part] or frozenset((part, below)) in TOGETHER
            if not allowed:
                forbidden.append(f"{name} imports {other}")
    assert not forbidden, "\n".join(forbidden)


def test_the_gateway_is_no_client_and_knows_nothing_of_registries() -> None:
    forbidden = []
    for name in modules():
        if name.partition(".")[0] == "ostiary_gateway":
            commands = part_of(name) in ("ostiary_gateway.cli", "ostiary_gateway.local_proxy")
            allowed = SHARED | (SHARED_BY_COMMANDS if commands else set()) | {"ostiary"}
            others = {each for each in imports()[name] if each.partition(".")[0] == "ostiary"}
            forbidden += [f"{name} imports {each}" for each in sorted(others) if part_of(each) not in allowed]
    assert not [each for each in forbidden if "__main__" not in each], "\n".join(forbidden)


def test_a_provider_needs_no_other_provider() -> None:
    prefix = "ostiary_gateway.providers."
    forbidden = []
    for name in modules():
        if not name.startswith(prefix):
            continue
        own = name.removeprefix(prefix).split(".")[0]
        allowed = {own, "common", *PROVIDERS.get(own, ())}
        for other in sorted(imports()[name]):
            if other.startswith(prefix) and other.removeprefix(prefix).split(".")[0] not in allowed:
                forbidden.append(f"{name} imports {other}")
    assert not forbidden, "\n".join(forbidden)


def test_only_configured_providers_are_imported() -> None:
    """Outside the providers, code knows what all of them share, and no provider: they arrive through the catalog."""
    shared = "ostiary_gateway.providers.common."
    forbidden = [
        f"{name} imports {other}"
        for name in modules()
        if part_of(name) not in ("ostiary_gateway.providers", "ostiary_gateway.testing")
        for other in sorted(imports()[name])
        if part_of(other) == "ostiary_gateway.providers" and not other.startswith(shared)
    ]
    assert forbidden == []


def test_the_middleware_needs_no_web_framework_and_no_http_parser() -> None:
    """It works with any framework, and needs none."""
    script = "import sys, ostiary_gateway.middleware.asgi, ostiary_gateway.middleware.wsgi; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert not set(shown.split()) & {"starlette", "fastapi", "django", "flask", "httptools", "uvloop", "uvicorn"}


def cycle_among(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_two_modules_import_each_other_even_in_a_roundabout_way() -> None:
    assert cycle_among(imports()) == []


def test_only_core_process_starts_processes() -> None:
    users = {
        name
        for name, path in modules().items()
        if any(f"import {library}" in path.read_text() for library in ("subprocess", "pty", "multiprocessing"))
    }
    assert users
    assert [name for name in users if not name.startswith("ostiary.core.process.")] == []


def test_every_public_name_can_be_had_and_no_other_is_promised() -> None:
    for name in ostiary.__all__:
        assert getattr(ostiary, name) is not None
    assert set(ostiary.__all__) == set(ostiary._MODULE_OF)


def test_importing_ostiary_imports_nothing_else() -> None:
    """The cost of ``import ostiary`` is the cost of reading one small file."""
    script = "import sys; before = set(sys.modules); import ostiary; print(*sorted(set(sys.modules) - before))"
    shown = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert set(shown.split()) <= {
        "ostiary",
        "__future__",
        "typing",
        "collections",
        "functools",
        "operator",
        "re",
    } | set(
        subprocess.run(
            [sys.executable, "-I", "-c", "import sys, typing, __future__; print(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )
