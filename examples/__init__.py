"""Each folder here is a small whole program; the end-to-end tests run them all."""
