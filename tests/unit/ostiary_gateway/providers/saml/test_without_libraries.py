"""A gateway without SAML needs none of its libraries; one with it says which extra is missing."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
for name in ("lxml", "signxml"):
    sys.modules[name] = None
import ostiary_gateway.server.serve
import ostiary_gateway.providers.saml.settings
from ostiary_gateway.catalog import load
from ostiary.errors import ConfigurationError
try:
    load("identity", "saml")
except ConfigurationError as error:
    print(error.code, error.hint)
"""


def test_the_settings_are_known_and_the_missing_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "plugin-broken pip install 'ostiary-gateway[saml]'"


def test_a_gateway_without_saml_does_not_load_it() -> None:
    loaded = "import sys, ostiary_gateway.server.serve; print([m for m in sys.modules if m in ('lxml', 'signxml')])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
