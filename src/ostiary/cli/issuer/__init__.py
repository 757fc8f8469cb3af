"""The gateway as an issuer of JWTs: what clusters must be told, and its signing keys."""
