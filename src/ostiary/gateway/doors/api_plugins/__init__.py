"""API groups beside those of the upstreams: who serves them, what discovery tells of them, and how they are registered.

They are API plugins, which are processes of their own (`upstream.api_plugins`), and providers that serve resources.
"""
