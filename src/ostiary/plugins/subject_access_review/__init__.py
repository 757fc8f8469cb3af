"""Decisions of another server, asked by SubjectAccessReview."""
