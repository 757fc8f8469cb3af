"""Encodings of Kubernetes objects: JSON as Go writes it, protobuf, and which of them a request asks for."""
