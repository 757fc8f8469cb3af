"""Programs that their platform vouches for: pods, CI jobs and other workloads, by a token that it has signed."""
