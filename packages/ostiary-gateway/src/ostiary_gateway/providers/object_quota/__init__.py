"""Object quotas: the number of objects per namespace, user or group, and the sums of their fields."""
