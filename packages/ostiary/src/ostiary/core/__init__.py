"""Foundations shared by the client, the registry tools and the gateway: time, secrets, processes, parsing."""
