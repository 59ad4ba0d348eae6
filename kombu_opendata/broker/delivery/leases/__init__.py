"""Leases and the sessions that hold them: beginning, expiry and end."""
