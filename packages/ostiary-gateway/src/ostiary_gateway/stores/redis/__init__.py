"""Tokens in Redis or Valkey, for several replicas."""
