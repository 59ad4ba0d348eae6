"""Submit tasks for tenants, given as name=number: ``python submit.py big=1000 small=1``."""

import sys

from reports import report

for argument in sys.argv[1:]:
    tenant, _, number = argument.partition("=")
    for each in range(int(number)):
        report.apply_async((tenant, each), headers={"tenant": tenant})
    print(f"{tenant}: {number} tasks")
