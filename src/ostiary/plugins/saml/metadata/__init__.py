"""What the identity system and the gateway publish about themselves."""
