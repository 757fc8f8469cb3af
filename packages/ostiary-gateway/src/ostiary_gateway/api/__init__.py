"""Built-in endpoints: webhooks, self reviews, the operator API, the issuer's documents and API groups."""
