"""Settings that are declared once. The loader, the JSON Schema and the reference are made from the declaration.

kinds            what a value may be: Text, Duration, FilePath, ...
declare          a dataclass with kinds in its annotations; reading it from `ConfigSection`
sections         a declaration inside another one
schema           JSON Schema
reference        tables in Markdown
plugin_settings  the declarations of installed providers
"""
