"""Endpoints that the gateway answers itself: webhooks, self reviews and its own API."""
