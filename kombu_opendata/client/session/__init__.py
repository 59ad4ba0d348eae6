"""A session with a broker that outlives its sockets: its state, its reconnects, and the connection that callers use."""
