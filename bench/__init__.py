"""Figures, made by one command: ``make bench``. Ratios within one run; they never decide a test's colour."""
