"""Requests as real programs make them: a recording of kubectl, of Kubernetes' own controllers and of a dashboard."""
