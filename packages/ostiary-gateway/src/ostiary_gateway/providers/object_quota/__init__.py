"""Quotas of objects: how many a namespace, user or group may have, and the sums of their fields."""
