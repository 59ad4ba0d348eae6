"""Session with a broker that outlives its sockets: state, reconnects, and the connection that callers use."""
