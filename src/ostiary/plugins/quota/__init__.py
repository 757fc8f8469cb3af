"""Admission by quota."""
