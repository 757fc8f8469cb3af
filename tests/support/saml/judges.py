from datetime import timedelta

SKEW = timedelta(seconds=30)
