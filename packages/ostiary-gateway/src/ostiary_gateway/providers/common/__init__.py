"""What several plugins share: HTTP calls, passwords, policy files. Knows no identity system."""
