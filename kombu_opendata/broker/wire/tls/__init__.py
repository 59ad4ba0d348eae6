"""TLS of the broker: certificates and authorities from files, and alerts with the reason of a refusal."""
