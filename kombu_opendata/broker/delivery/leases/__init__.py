"""Leases and the sessions that hold them: both begin, expire and end here."""
