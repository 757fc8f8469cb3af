"""Declarative settings. The loader, the JSON Schema and the reference tables derive from one declaration.

kinds       types of values: Text, Duration, FilePath, ...
declare     a dataclass with kinds in its annotations, and reading it from a `ConfigSection`
sections    nested declarations, settings of installed providers, JSON Schema, and Markdown tables
outgoing    settings of servers that the gateway calls
"""
