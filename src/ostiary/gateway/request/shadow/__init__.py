"""Our decision beside the cluster's, for a share of the requests."""
