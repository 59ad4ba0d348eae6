"""Options of a broker: their definition, and their values from command line, environment and file."""
