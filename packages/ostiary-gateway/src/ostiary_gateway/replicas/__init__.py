"""Replicas on other machines: which there are, what they refused, whose token store it is. They meet in the store."""
