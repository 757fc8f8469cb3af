"""Three replicas of a gateway over one PostgreSQL: one is lost, and access is withdrawn everywhere."""
