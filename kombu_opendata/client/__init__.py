"""Client side of a connection: sessions that survive reconnects, and startup of the embedded broker."""
