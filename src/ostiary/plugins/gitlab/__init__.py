"""GitLab: its users and their groups."""
