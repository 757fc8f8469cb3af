"""The daemon's status as JSON, without secrets, for ``ostiary registry status``."""

from __future__ import annotations

from typing import TypedDict


class ProviderStatus(TypedDict):
    name: str
    disabled: bool
    runs: int
    keptAnswers: int


class ConfigStatus(TypedDict):
    """`error` is why the current file is not active; empty if it is."""

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
