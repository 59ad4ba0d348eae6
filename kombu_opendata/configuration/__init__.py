"""The options of a broker: their one definition, and their values from command line, environment and file."""
