"""A Django app for the tests: it joins a copy of ``examples/django_app``."""
