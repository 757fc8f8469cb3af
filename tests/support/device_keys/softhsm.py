"""A token of SoftHSM, made with its own tools."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

MODULES = [
    Path(folder) / "libsofthsm2.so"
    for folder in ("/usr/lib/softhsm", "/usr/lib/x86_64-linux-gnu/softhsm", "/usr/local/lib/softhsm")
]
PIN, SO_PIN = "271828", "31415926"


def module() -> Path:
    return next((path for path in MODULES if path.exists()), MODULES[0])


@dataclass(frozen=True)
class SoftToken:
    """One token. SoftHSM looks for it where its configuration says, so a process sees the tokens of one folder."""

    folder: Path
    label: str = "card"

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SOFTHSM2_CONF": str(self.folder / "softhsm2.conf")}

    def init(self) -> None:
        (self.folder / "tokens").mkdir(parents=True, exist_ok=True)
        text = f"directories.tokendir = {self.folder}/tokens\nobjectstore.backend = file\nlog.level = ERROR\n"
        (self.folder / "softhsm2.conf").write_text(text)
        self._run("softhsm2-util", "--init-token", "--free", "--label", self.label, "--pin", PIN, "--so-pin", SO_PIN)

    def generate(self, label: str, kind: str, key_id: str) -> None:
        """*kind* as pkcs11-tool has it: ``EC:prime256v1``, ``rsa:2048``."""
        self.tool("--keypairgen", "--key-type", kind, "--label", label, "--id", key_id)

    def tool(self, *arguments: str) -> None:
        login = ("--token-label", self.label, "--login", "--pin", PIN)
        self._run("pkcs11-tool", "--module", str(module()), *login, *arguments)

    def import_key(self, label: str, pkcs8: Path, key_id: str) -> None:
        place = ("--token", self.label, "--pin", PIN, "--label", label, "--id", key_id)
        self._run("softhsm2-util", "--import", str(pkcs8), *place)

    def delete(self) -> None:
        self._run("softhsm2-util", "--delete-token", "--token", self.label)

    def address(self, label: str, pin_file: Path | None = None) -> str:
        source = f"&pin-source=file:{quote(str(pin_file))}" if pin_file else ""
        return f"pkcs11:token={self.label};object={label};type=private?module-path={module()}{source}"

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
