"""Google: groups of a Workspace, and its image registries."""
