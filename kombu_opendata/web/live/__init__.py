"""Live updates of open views."""
