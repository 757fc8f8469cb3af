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
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "ostiary"

# What each part may import of ours, besides itself. A part that is not listed here fails the test.
MAY_IMPORT = {
    "model": set(),
    "errors": {"model"},
    "interfaces": {"model", "errors"},
    "core": {"interfaces", "model", "errors"},
    "wire": {"core", "interfaces", "model", "errors"},
    "registry": {"core", "wire", "model", "errors"},
    "client": {"core", "wire", "model", "errors"},
    "plugin": {"core", "wire", "model", "errors"},
    "gateway": {"core", "wire", "interfaces", "model", "errors"},
    # The gateway's engine as a library, so it takes the steps of a request from there; of the plugins only what they
    # share: see `test_the_library_knows_no_plugin`.
    "backend": {"gateway", "plugins", "core", "wire", "interfaces", "model", "errors"},
    "exec_info": {"plugin", "wire"},
    "asgi": {"backend"},
    "wsgi": {"backend"},
    "testing": {"core", "wire", "interfaces", "model", "errors"},
    "plugins": {"core", "wire", "interfaces", "plugin", "model", "errors"},
    "cli": {"client", "registry", "gateway", "plugin", "core", "wire", "interfaces", "model", "errors"},
    "__main__": {"cli"},
    "__init__": {"client", "model", "errors"},
}

# What each folder inside a part may import of the same part, besides itself; a folder inside a folder has its rules.
# A folder that is not listed fails the test. Where a part has modules of its own beside its folders, "." stands for
# them: both ways are then open between "." and a folder, and what keeps order there is that no two modules import
# each other.
GATEWAY_BASE = {"http1", "config", "look", "observe"}
GATEWAY_STEPS = {"authenticate", "authorize", "admit", "upstream", "audit"}
GATEWAY_BELOW_DOORS = {"request", *GATEWAY_STEPS, *GATEWAY_BASE}
INSIDE = {
    "gateway": {
        "process": {"doors", "accounts", "issuer", "login", "policy", "replicas", "siblings", *GATEWAY_BELOW_DOORS},
        "doors": {"accounts", "issuer", "replicas", "siblings", *GATEWAY_BELOW_DOORS},
        "login": {"accounts", "issuer", "replicas", "siblings", *GATEWAY_BELOW_DOORS},
        "accounts": {"config"},
        "policy": GATEWAY_BELOW_DOORS,
        # What replicas write down for each other has the form of what workers send each other.
        "replicas": {"siblings", *GATEWAY_STEPS, "config", "observe"},
        "siblings": {*GATEWAY_STEPS, "observe"},
        "request": {*GATEWAY_STEPS, *GATEWAY_BASE},
        "authenticate": GATEWAY_BASE,
        "authorize": GATEWAY_BASE,
        "admit": GATEWAY_BASE,
        "upstream": GATEWAY_BASE,
        "audit": GATEWAY_BASE,
        "issuer": {"observe"},
        "http1": {"observe"},
        # A setting stands beside what it configures, so the configuration knows the parts below it.
        "config": {"http1", "issuer", "look", "observe"},
        "look": set(),
        "observe": set(),
    },
    "backend": {
        ".": {"authenticate", "config"},
        "authenticate": {".", "config"},
        "config": set(),
    },
    "client": {
        ".": {"adapters", "auth_provider", "exec", "kubeconfig", "signing"},
        "adapters": {".", "signing"},
        "auth_provider": {".", "kubeconfig"},
        "exec": {".", "kubeconfig"},
        "kubeconfig": {"."},
        "signing": {"exec", "kubeconfig"},
    },
    "registry": {
        ".": {"check", "docker", "kubelet", "matching"},
        "check": {".", "kubelet", "matching", "mirrors"},
        # It answers for both programs, which ask it before they do anything themselves.
        "daemon": {".", "docker", "kubelet", "matching"},
        # Each has a program that serves one side with what the other configures: docker's helper asks the kubelet's
        # providers, and the kubelet's provider asks docker's stores.
        "docker": {".", "daemon", "kubelet", "matching"},
        # Its provider may ask for the login of a mirror.
        "kubelet": {".", "daemon", "docker", "matching", "mirrors"},
        "matching": set(),
        # endpoint_lookup and endpoint_explain know the keyring; the others only read the files of a runtime.
        "mirrors": {".", "docker", "kubelet", "matching"},
    },
    "cli": {
        # The dispatcher prints the token of ``connect token`` before anything else is imported.
        ".": {"connect"},
        "accounts": {".", "gateway"},
        "completion": {"."},
        "connect": {".", "kubeconfig", "signin"},
        "door": {".", "gateway"},
        "exec": {"."},
        "gateway": {".", "signin"},
        "issuer": {".", "gateway"},
        "kubeconfig": {".", "signin"},
        "policy": {".", "gateway", "signin"},
        "registry": {"."},
        "signin": {"."},
        "store": {".", "gateway"},
        "token": {".", "signin"},
    },
    "core": {
        ".": {"config", "go", "keys", "platform", "process"},
        "abilities": {"."},
        "caching": {"."},
        "config": {".", "go"},
        "counting": {".", "net"},
        "delegation": {".", "rules"},
        "go": set(),
        "keys": {".", "caching", "process"},
        "net": {"."},
        "platform": set(),
        "process": {".", "platform"},
        "rules": set(),
        "secrets": {"."},
        "settings": {".", "config", "go", "keys"},
        "tokens": {".", "secrets", "users"},
        "users": set(),
    },
    "interfaces": {
        ".": {"store_abilities"},
        "keys": set(),
        "store_abilities": {"."},
        "upstream_abilities": {"."},
    },
    "wire": {
        ".": {"client_authentication", "codec", "discovery", "ostiary_dev", "request"},
        "audit": {"rbac"},
        "client_authentication": {"codec"},
        "codec": set(),
        "discovery": set(),
        "ostiary_dev": set(),
        "rbac": {"request"},
        "request": set(),
    },
    "testing": {
        ".": set(),
        "token_store": {"."},
    },
    # A plugin is a folder that needs no other plugin, and so has no row. Those that read another's format name it here.
    "plugins": {
        "common": set(),
        "client_certificate": {"common", "claims"},
        "oidc": {"common", "claims"},
        # Issuers that are known by name: OpenID Connect with the habits of one of them.
        **{name: {"common", "oidc"} for name in ("auth0", "gitlab", "google", "keycloak", "microsoft", "okta")},
        "sso_cookie": {"common", "claims", "oidc"},
        "saml": {"common", "claims", "oidc"},
        "trusted_header": {"common", "claims", "client_certificate", "oidc"},
        "workload": {"common", "claims", "oidc"},
    },
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    return {_dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
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
    """The part that a module belongs to: the folder or the module directly below ``ostiary``."""
    return "__init__" if name == "ostiary" else name.split(".")[1]


def folder_of(name: str) -> str:
    """The folder of a module directly below its part, or "." for the part's own modules."""
    folder = modules()[name].parent.relative_to(PACKAGE)
    return Path(*folder.parts[1:2]).as_posix()


def place_of(name: str) -> str:
    return (Path(part_of(name)) / folder_of(name)).as_posix()


def test_imports_point_one_way() -> None:
    """E6, I1."""
    assert {part_of(name) for name in modules()} <= MAY_IMPORT.keys()
    # `from ostiary import __version__` reads the package itself, which every module has imported already.
    forbidden = [
        f"{name} imports {other}"
        for name in modules()
        for other in sorted(imports()[name] - {"ostiary"})
        if part_of(other) not in MAY_IMPORT[part_of(name)] | {part_of(name)}
    ]
    assert not forbidden, "\n".join(forbidden)


def test_the_library_knows_no_plugin() -> None:
    """Plugins arrive through the catalog; how JWTs are verified and HTTP is spoken is what all of them share."""
    imported = {other for name in modules() if part_of(name) == "backend" for other in imports()[name]}
    of_plugins = {name for name in imported if part_of(name) == "plugins"}
    assert of_plugins
    assert all(name.startswith("ostiary.plugins.common.") for name in of_plugins)


def test_the_library_needs_no_web_framework_and_no_parser_of_heads() -> None:
    """What ``ostiary[backend]`` does not install: the middleware works with any framework, and needs none."""
    script = "import sys, ostiary.asgi, ostiary.wsgi; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert not set(shown.split()) & {"starlette", "fastapi", "django", "flask", "httptools", "uvloop", "uvicorn"}


def folder_imports() -> dict[tuple[str, str], list[str]]:
    """The imports from one folder of a part to another folder of the same part, with the modules that do it."""
    result: dict[tuple[str, str], list[str]] = {}
    for name, imported in imports().items():
        for other in imported:
            if part_of(name) == part_of(other) and place_of(name) != place_of(other):
                result.setdefault((place_of(name), place_of(other)), []).append(f"{name} imports {other}")
    return result


def allowed_folder_imports() -> set[tuple[str, str]]:
    plugins = {folder_of(name) for name in modules() if part_of(name) == "plugins"}
    table = {**INSIDE, "plugins": {**{plugin: {"common"} for plugin in plugins}, **INSIDE["plugins"]}}
    return {
        ((Path(part) / folder).as_posix(), (Path(part) / other).as_posix())
        for part, rows in table.items()
        for folder, others in rows.items()
        for other in others
    }


def test_every_folder_of_a_part_has_its_row() -> None:
    # The `__init__` of a part that has folders only is a docstring, and needs no row.
    places = {(part_of(name), folder_of(name)) for name, path in modules().items() if path.parent != PACKAGE}
    with_folders = {part for part, folder in places if folder != "."}
    own_modules = {
        part_of(name) for name, path in modules().items() if path.name != "__init__.py" and folder_of(name) == "."
    }
    needed = {(part, folder) for part, folder in places if folder != "." or part in own_modules}
    rows = {(part, folder) for part, table in INSIDE.items() for folder in table if part != "plugins"}
    assert rows == {(part, folder) for part, folder in needed if part in with_folders - {"plugins"}}


def test_imports_between_the_folders_of_a_part_follow_the_table() -> None:
    forbidden = {edge: lines for edge, lines in folder_imports().items() if edge not in allowed_folder_imports()}
    assert [line for lines in forbidden.values() for line in lines] == []


def test_the_steps_of_the_gateway_are_in_one_order() -> None:
    """The table itself allows no two steps to import each other."""
    TopologicalSorter(INSIDE["gateway"]).prepare()


def cycle_among(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_two_modules_import_each_other_even_in_a_roundabout_way() -> None:
    assert cycle_among(imports()) == []


def test_only_core_process_starts_processes() -> None:
    users = [
        path.relative_to(PACKAGE).parent
        for path in modules().values()
        if any(f"import {name}" in path.read_text() for name in ("subprocess", "pty", "multiprocessing"))
    ]
    assert set(users) == {Path("core/process")}


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
