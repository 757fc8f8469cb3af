"""The configuration of an API that checks tokens and policy itself: ``backend.yaml``."""
