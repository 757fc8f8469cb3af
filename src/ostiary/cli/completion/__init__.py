"""``ostiary completion``: tab completion for a shell, made from the parsers of all commands.

A script holds everything it needs to know, so pressing tab starts no Python.
"""
