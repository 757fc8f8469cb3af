"""Every program that the kubelet or docker runs tells a person what it is, instead of waiting for a request."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = {
    "ostiary.registry.providers.ecr": "Amazon ECR",
    "ostiary.registry.providers.google": "Google Artifact Registry",
    "ostiary.registry.providers.azure": "--registry-mirror",
    "ostiary.registry.providers.demo": "DEMO_USER",
    "ostiary.registry.kubelet.program": "--config FILE",
    "ostiary.registry.docker_helper": "OSTIARY_REGISTRY_CONFIG",
}


def test_help_is_printed_and_stdin_is_not_read(subtests: pytest.Subtests) -> None:
    for option in ["--help", "-h"]:
        for module, about in MODULES.items():
            with subtests.test(option=option, module=module, about=about):
                command = [sys.executable, "-m", module, option]
                # A stdin that never ends: whoever reads it does not come back.
                with subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                ) as process:
                    assert process.stdout is not None
                    out = process.stdout.read().decode()
                    assert process.wait(timeout=100) == 0
                assert out.startswith("usage: ")
                assert about in out
                assert "ostiary registry" in out
