"""The web page: an ASGI app that is a client of the broker, with a JSON API (extra ``web``)."""
