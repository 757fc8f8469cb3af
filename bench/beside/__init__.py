"""Candidates beside plain nginx: how each is started, what wrk sends, and how pairs of samples become figures."""
