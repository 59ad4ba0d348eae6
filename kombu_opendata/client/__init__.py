"""The client's side of a connection: a session that outlives its sockets, and starting the embedded broker."""
