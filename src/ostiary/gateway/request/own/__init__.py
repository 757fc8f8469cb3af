"""Requests that the gateway answers itself: its open paths, its own APIs, and reviews of the sender's own token."""
