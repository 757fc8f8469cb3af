"""The client's side: connections that read requests, hand out exchanges, and write answers back in order."""
