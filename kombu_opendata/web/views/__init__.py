"""Views of the web UI: each has its report, its page and its route of the JSON API."""
