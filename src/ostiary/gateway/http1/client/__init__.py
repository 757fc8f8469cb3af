"""The upstream's side: a pool of connections to one upstream, and one answer after the other on each."""
