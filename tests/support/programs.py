"""Which program has a command: ``ostiary`` or ``ostiary-gateway``."""

from __future__ import annotations

from ostiary.cli import COMMANDS


def program_of(command: str) -> str:
    """Return the name of the program. What both have, and what neither has, is the client's."""
    from ostiary_gateway.cli import COMMANDS as GATEWAY_COMMANDS

    return "ostiary-gateway" if command in GATEWAY_COMMANDS and command not in COMMANDS else "ostiary"


def module_of(command: str) -> str:
    """Return what follows ``python -m``."""
    return program_of(command).replace("-", "_")
