"""What operators see of a running gateway: log, metrics and reasons."""
