"""What a provider may be able to do with an upstream besides its contract: to follow what it holds."""
