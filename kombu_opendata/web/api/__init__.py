"""JSON API: the data of the views and the actions of the dialogs, with an OpenAPI description."""
