"""Signing in as a person, where `platforms` needs nobody. `ways` chooses how; `terminal` tells and asks the person."""
