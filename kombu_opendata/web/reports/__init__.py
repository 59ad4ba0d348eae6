"""Reports for the views and the API: combined results of the broker, without HTML and HTTP."""
