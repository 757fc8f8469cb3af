"""The gateway: authenticates and authorizes requests, and forwards them to an upstream."""
