"""Three replicas of a gateway with one PostgreSQL: one replica is killed, and a user is revoked on all of them."""
