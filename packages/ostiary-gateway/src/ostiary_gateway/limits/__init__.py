"""Admission: bounds on what one user may take of what all share."""
