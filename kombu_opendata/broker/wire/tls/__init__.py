"""TLS of the broker: certificates and authorities from files, and alerts that tell a client why it is refused."""
