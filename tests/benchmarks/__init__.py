"""The benchmark: this broker, RabbitMQ and Redis in one run, as ratios.

Run it with ``make bench`` or ``python -m tests.benchmarks --out docs/benchmarks.md``. `__main__` has the command line
and the list of workloads; `rows.toml` the rows and their targets; `reasons.toml` the bounds of missed targets. Brokers
come from `peers` and `servers`, processes from `processes`, and the code in them from `clients` and `celery_app`. Each
other module measures one or more workloads. `record` keeps their samples in docs/benchmarks/samples.json, from which
`report`, `plots` and `capacity` make the pages, with the words of the templates.
"""
