"""Who may see and do what: logins, sessions, proxies, forged requests, the audit log."""
