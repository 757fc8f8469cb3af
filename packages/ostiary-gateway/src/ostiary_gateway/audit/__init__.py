"""What was asked, and how it ended: events of audit.k8s.io, and where they are stored."""
