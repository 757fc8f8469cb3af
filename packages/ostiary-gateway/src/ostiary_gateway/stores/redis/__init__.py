"""Token store in Redis or Valkey, for several replicas."""
