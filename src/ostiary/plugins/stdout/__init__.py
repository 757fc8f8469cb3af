"""Standard output: audit events for whoever reads it, a container's runtime for example."""
