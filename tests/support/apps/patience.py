"""Options of a client that outlasts a broker that is killed and started again, several times over; all in seconds."""

PATIENT = {"start_timeout": 60, "reconnect_timeout": 60}
