"""Workers and replicas of one gateway: messages, lookups across them, and the replica list in the token store."""
