"""``python -m django_checks.call MODULE FUNCTION ARGUMENTS`` calls it in the Django project; arguments are JSON."""

import importlib
import json
import sys

import django

if __name__ == "__main__":
    django.setup()
    module, function, arguments = sys.argv[1:]
    called = getattr(importlib.import_module(f"django_checks.{module}"), function)
    print(json.dumps(called(*json.loads(arguments))))
