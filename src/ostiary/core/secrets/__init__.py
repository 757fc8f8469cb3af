"""Keeping secrets secret: redacted from text, sealed in a store."""
