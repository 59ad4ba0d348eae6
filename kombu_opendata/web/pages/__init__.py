"""HTML pages: each view and each dialog, from reports and actions."""
