"""Connections to a broker over one socket (TCP, TLS, a Unix socket, or a socket pair), and their frames."""
