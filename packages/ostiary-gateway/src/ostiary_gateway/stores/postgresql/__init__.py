"""Token store in a PostgreSQL database, for any number of replicas."""
