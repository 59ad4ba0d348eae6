"""Connect to a broker and exchange frames with it over one socket: TCP, TLS, a Unix socket, or a socket pair."""
