"""Keys in Amazon's Key Management Service."""
