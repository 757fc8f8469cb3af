"""Image credential providers: for the clouds' own registries, and one to try the registry tools with."""
