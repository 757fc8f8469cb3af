"""Audit events of audit.k8s.io: the auditor, its sinks, and the reader for recorded logs."""
