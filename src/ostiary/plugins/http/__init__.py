"""Attributes of requests to any HTTP API."""
