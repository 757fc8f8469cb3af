"""A gateway before a small API: who may, who may not, and a watch that is cut: ``python -m examples.gateway``."""
