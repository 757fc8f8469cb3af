"""The programs that run at every pull import only what their verb needs.

docker starts ``docker-credential-ostiary`` and the kubelet ``ostiary-credential-provider`` once for every image, so
each module that is imported without need is paid for at every pull.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ostiary.registry.daemon import protocol

HELPER = "ostiary.registry.docker_helper"
PROVIDER = "ostiary.registry.kubelet.program"
# Each takes many milliseconds to import, and none is needed to look up a login in a configuration.
SLOW = {"asyncio", "ssl", "http.client", "urllib.request", "email", "cryptography", "prometheus_client", "httpx"}

SCRIPT = """
import json, runpy, sys
module, *words = sys.argv[1:]
sys.argv = [module, *words]
try:
    runpy.run_module(module, run_name="__main__")
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""

# What is asked first: whether a daemon runs.
ASKS_DAEMON = {"ostiary.registry.daemon", "ostiary.registry.daemon.relay", "ostiary.registry.user_config"}
PACKAGES = {"ostiary.registry", "ostiary.registry.kubelet"}
MATCHING = {"ostiary.registry.image_name"}
READS_CONFIG = {
    "ostiary.registry.kubelet.config",
    "ostiary.registry.kubelet.document",
    "ostiary.registry.kubelet.model",
    "ostiary.registry.image_name",
    "ostiary.registry.user_config",
}
LOOKS_UP = {
    "ostiary.registry.cache",
    "ostiary.registry.credentials",
    "ostiary.registry.docker_helper_protocol",
    "ostiary.registry.docker_login_search",
    "ostiary.registry.keyring",
    "ostiary.registry.kubelet.provider",
    "ostiary.registry.kubelet.service_account",
    "ostiary.registry.image_matching",
    "ostiary.registry.metrics",
}
ASKS_SOURCES = {
    "ostiary.registry.docker_helper_protocol",
    "ostiary.registry.kubelet.respond",
    "ostiary.registry.kubelet.sources",
    "ostiary.registry.kubelet.source_response",
    "ostiary.registry.image_matching",
}


def imported(folder: Path, module: str, *words: str, stdin: str = "") -> set[str]:
    """The modules that are in memory when the program has ended."""
    environ = {**os.environ, "OSTIARY_REGISTRY_CONFIG": str(folder / "registry.yaml")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, module, *words],
        input=stdin,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def of_registry(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("ostiary.registry")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    provider = {
        "name": "login",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "matchImages": ["registry.example.com"],
        "defaultCacheDuration": "1m",
    }
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [provider],
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(config))
    (tmp_path / "bin").mkdir()
    return tmp_path


def sources(folder: Path, **source: object) -> str:
    """A configuration of the credential provider with one source."""
    file = folder / "sources.yaml"
    content = {
        "apiVersion": "ostiary/v1",
        "kind": "ImageCredentialSources",
        "sources": [{"matchImages": ["*.example.com"], **source}],
    }
    file.write_text(json.dumps(content))
    return str(file)


def request(image: str) -> str:
    version = "credentialprovider.kubelet.k8s.io/v1"
    return json.dumps({"apiVersion": version, "kind": "CredentialProviderRequest", "image": image})


@pytest.mark.parametrize(
    ("verb", "ours"),
    [
        ("--help", PACKAGES - {"ostiary.registry.kubelet"}),
        ("version", PACKAGES - {"ostiary.registry.kubelet"}),
        ("store", PACKAGES - {"ostiary.registry.kubelet"}),
        ("erase", (PACKAGES | ASKS_DAEMON) - {"ostiary.registry.kubelet"}),
        ("list", PACKAGES | READS_CONFIG),
        ("get", PACKAGES | ASKS_DAEMON | MATCHING | READS_CONFIG | LOOKS_UP),
    ],
)
def test_the_docker_helper_imports_only_what_its_verb_needs(folder: Path, verb: str, ours: set[str]) -> None:
    modules = imported(folder, HELPER, verb, stdin="registry.example.com")
    assert of_registry(modules) == ours
    assert modules & SLOW == set()
    if verb not in ("list", "get"):
        assert "yaml" not in modules


def test_the_docker_helper_reads_no_configuration_for_a_host_without_images(folder: Path) -> None:
    modules = imported(folder, HELPER, "get", stdin="build-server")
    assert of_registry(modules) == {
        "ostiary.registry",
        "ostiary.registry.docker_helper_protocol",
        *ASKS_DAEMON,
        *MATCHING,
    }


@pytest.mark.parametrize("words", [["--help"], [], ["--confg", "x"]])
def test_the_credential_provider_imports_nothing_to_tell_its_usage(folder: Path, words: list[str]) -> None:
    modules = imported(folder, PROVIDER, *words)
    assert of_registry(modules) == {"ostiary.registry", "ostiary.registry.kubelet"}


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ({"command": ["/absent"]}, "ostiary.registry.kubelet.command_source"),
        ({"authFile": "absent.json"}, "ostiary.registry.docker_store"),
        ({"helper": "absent"}, "ostiary.registry.docker_store"),
    ],
    ids=["command", "authFile", "helper"],
)
def test_the_credential_provider_imports_the_kind_of_source_that_it_asks(
    folder: Path, source: dict[str, object], module: str
) -> None:
    file = sources(folder, **source)
    modules = imported(folder, PROVIDER, "--config", file, stdin=request("registry.example.com/app"))
    assert module in modules
    assert modules & SLOW == set()
    kinds = {
        "ostiary.registry.docker_store",
        "ostiary.registry.kubelet.command_source",
        "ostiary.registry.kubelet.http_sources",
    }
    assert modules & kinds == {module}


def test_the_credential_provider_imports_no_source_for_an_image_that_is_not_its_own(folder: Path) -> None:
    file = sources(folder, command=["/absent"])
    modules = imported(folder, PROVIDER, "--config", file, stdin=request("elsewhere.test/app"))
    assert of_registry(modules) == (PACKAGES | ASKS_DAEMON | MATCHING | ASKS_SOURCES)
    assert "subprocess" not in modules


def test_the_sdk_for_providers_loads_neither_client_nor_gateway() -> None:
    """I31."""
    code = "import json, sys, ostiary.sdk.image_provider; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    modules = json.loads(done.stdout)
    parts = {name.split(".")[1] for name in modules if name.startswith("ostiary.")}
    assert "sdk" in parts
    assert parts & {"cli", "client", "conformance", "kubeconfig"} == set()
    assert not any(name.startswith("ostiary_gateway") for name in modules)


# --- with an answer of the daemon ---

RELAYED = """
import json, os, sys
os._exit = lambda code: (print(json.dumps(sorted(sys.modules)), file=sys.stderr, flush=True), sys.exit(code))
module = sys.argv[1]
sys.argv = sys.argv[1:]
__import__(module)
sys.modules[module].main()
"""


@pytest.mark.parametrize(
    ("module", "words", "stdin"),
    [
        (HELPER, ["get"], "registry.example.com"),
        (PROVIDER, ["--config", "sources.yaml"], json.dumps({"image": "registry.example.com/app"})),
    ],
    ids=["docker helper", "credential provider"],
)
def test_an_answer_of_the_daemon_costs_next_to_no_import(
    tmp_path: Path, module: str, words: list[str], stdin: str
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        environ = {**os.environ, "OSTIARY_REGISTRY_SOCKET": str(path)}
        environ.pop("OSTIARY_REGISTRY_PROVIDERS", None)
        command = [sys.executable, "-I", "-c", RELAYED, module, *words]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ) as program:
            assert program.stdin is not None
            program.stdin.write(stdin)
            program.stdin.close()
            program.stdin = None
            listener.settimeout(30)
            connection, _ = listener.accept()
            assert connection.recv(1 << 16).startswith(protocol.MAGIC)
            connection.sendall(protocol.ASKED + protocol.answer(0, b"the answer\n"))
            connection.close()
            stdout, stderr = program.communicate(timeout=30)
    assert stdout == "the answer\n"
    bare = subprocess.run(
        [sys.executable, "-I", "-c", "import json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Beside our own, which import nothing else, there is only the C half of `socket`. The test itself needs json.
    more = set(json.loads(stderr)) - set(json.loads(bare.stdout))
    outside = {name for name in more if not name.startswith("ostiary")}
    assert outside <= {"_socket", "time"}
    assert {name for name in more if name.startswith("ostiary")} - {module} == {
        "ostiary",
        "ostiary.registry",
        module.rpartition(".")[0],
        "ostiary.registry.daemon.client",
        "ostiary.registry.daemon.protocol",
        *ASKS_DAEMON,
    }


GATEWAY = """
import asyncio, json, socket, sys
from ostiary_gateway.config import loads
from ostiary_gateway.server.worker import Worker

async def serve(text):
    config = loads(text, directory=".")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = Worker(config, listener)
        await worker.start()
        await worker.close(drain=0.0)

asyncio.run(serve(sys.argv[1]))
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("traced", [False, True])
def test_a_gateway_imports_what_traces_need_only_where_it_traces(tmp_path: Path, traced: bool) -> None:
    config: dict[str, object] = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
    }
    if traced:
        config["tracing"] = {"endpoint": "http://127.0.0.1:1/v1/traces"}
    words = [sys.executable, "-I", "-c", GATEWAY, json.dumps(config)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    packages = ("opentelemetry", "google.protobuf", "httpx2", "ostiary_gateway.proxy.traced_engine")
    assert {each for each in packages if any(name.startswith(each) for name in modules)} == set(
        packages if traced else ()
    )
    tracing = {f"ostiary_gateway.observability.{name}" for name in ("tracing", "tracer", "otlp", "otlp_headers")}
    if not traced:
        assert modules & tracing == {"ostiary_gateway.observability.tracing"}, "what `traced_step` needs"
