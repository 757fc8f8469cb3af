"""The how-to pages about programs that sign in with the token of their platform, read block by block.

A page has a whole ``gateway.yaml`` and its policy, the file of the job, the log that the job shows, and how a job
without ``ostiary`` gets the platform's token. Each is used by a test as it stands; only addresses are replaced.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.walkthrough import ROOT, WriteFile, steps
from tests.support.workloads import GATEWAY

PAGES = ROOT / "docs/how-to"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROOF = re.compile(r"^proof=.*\n", re.MULTILINE)
_SCRIPT_PAGE = "sign-in-from-any-issuer.md"


class WorkloadPage:
    """One page. *server* takes the place of the gateway's address on it."""

    def __init__(self, name: str, server: str = GATEWAY) -> None:
        self.text = (PAGES / name).read_text().replace(GATEWAY, server)
        self._files = {step.name: step.text for step in steps(self.text) if isinstance(step, WriteFile)}

    def documents(self, name: str) -> list[Any]:
        """The YAML file *name* of the page."""
        return list(yaml.safe_load_all(self._files[name]))

    def script(self, name: str) -> str:
        return self._files[name]

    @property
    def gateway(self) -> dict[str, Any]:
        (document,) = self.documents("gateway.yaml")
        return dict(document)

    @property
    def identity(self) -> dict[str, Any]:
        (entry,) = self.gateway["identity"]
        return dict(entry)

    @property
    def policy(self) -> list[Any]:
        return self.documents("policy/deploy.yaml")

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The other parts of a ``gateway.yaml`` on the page: variants of the whole one."""
        blocks = [text for language, text in _BLOCK.findall(self.text) if language == "yaml"]
        return [part for text in blocks if not text.startswith("#") and "identity" in (part := yaml.safe_load(text))]

    @property
    def curl_script(self) -> str:
        """``deploy.sh``, with this page's way to the platform's token in it."""
        script = WorkloadPage(_SCRIPT_PAGE).script("deploy.sh")
        proofs = [text for language, text in _BLOCK.findall(self.text) if language == "sh" and _PROOF.match(text)]
        return _PROOF.sub(lambda _: proofs[0], script) if proofs else script

    def is_log(self, log: str) -> bool:
        """Whether *log* is what the page shows below "What you see"."""
        (shown,) = [text for language, text in _BLOCK.findall(self.text) if language == "text"]
        return re.fullmatch(".*".join(re.escape(part) for part in shown.strip().split("...")), log.strip()) is not None
