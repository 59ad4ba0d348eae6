"""The JSON API: what the views show and the dialogs do, with an OpenAPI description."""
