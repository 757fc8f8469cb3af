"""Tokens in a PostgreSQL database, for any number of replicas.

token_store     the store, put together of the parts in tables/
database        runs statements: time limits, retries, poolers      connections    the pool, and the hosts
store_time      between the machine's clock and the database's      failures       errors as causes and hints
notifications   wakes whoever waits for a revocation                migrations     steps/*.sql, and their versions
"""
