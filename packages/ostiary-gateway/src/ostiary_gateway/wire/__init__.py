"""Kubernetes and ostiary.dev documents as bytes. Pure."""
