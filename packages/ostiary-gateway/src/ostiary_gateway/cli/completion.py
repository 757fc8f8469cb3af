"""``ostiary-gateway completion``: tab completion for a shell."""

from __future__ import annotations

from functools import partial

from ostiary.cli import completion
from ostiary_gateway.cli import COMMANDS

configure = partial(completion.configure, program="ostiary-gateway", commands=COMMANDS)
