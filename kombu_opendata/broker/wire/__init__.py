"""Connections of clients: sockets, logins, frames."""
