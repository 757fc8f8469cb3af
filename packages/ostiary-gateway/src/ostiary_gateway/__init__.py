"""Door 3: request, user, decision, upstream."""
