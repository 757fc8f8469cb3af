"""What the daemon says of itself, as JSON, without a secret. Made by `engine`, read by ``ostiary registry status``."""

from __future__ import annotations

from typing import TypedDict


class ProviderStatus(TypedDict):
    name: str
    disabled: bool
    runs: int
    keptAnswers: int


class ConfigStatus(TypedDict):
    """`error` says why the file as it is now is not in force; empty if it is."""

    path: str
    hash: str
    error: str
    providers: list[ProviderStatus]


class SourcesStatus(TypedDict):
    path: str
    sources: int
    runs: int


class DaemonStatus(TypedDict):
    version: str
    pid: int
    started: str
    questions: int
    keptAnswers: int
    disabled: list[str]
    configs: list[ConfigStatus]
    sources: list[SourcesStatus]
