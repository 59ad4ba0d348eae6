"""Access control of the web UI: logins, sessions, proxies, forged requests, the audit log."""
