"""Amazon's Elastic Container Registry."""
