"""Google: its users, groups of a Workspace, and its image registries."""
