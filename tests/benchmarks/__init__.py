"""The benchmark: this broker, RabbitMQ and Redis in one run, as ratios.

Run it with ``make bench`` or ``python -m tests.benchmarks --out docs/benchmarks.md``.

===============  =====================================================================
module           job
===============  =====================================================================
`__main__`       the command line
`targets`        the rows of the table and the numbers asked, as data
`results`        samples, medians, ratios, verdicts
`peers`          which brokers there are; starts and stops ours
`servers`        RabbitMQ and Redis on ports and folders of their own
`processes`      runs functions in processes of their own, together behind a barrier
`kombu_api`      Kombu's names, for the type checker
`clients`        what a measured Kombu client does (runs in those processes)
`celery_app`     what a measured Celery producer and worker do
`workloads`      one round of each comparison
`floor`          the same clients on Kombu's in-memory transport
`backlog`        a million waiting messages (ours only)
`staging`        a million rows as staged batches (ours only)
`celery_rows`    a worker that waits, and one whose broker is killed (ours only)
`startup`        import time and the first connect (ours only)
`machine`        facts about the machine and the versions
`report`         the Markdown page and the terminal table
`reasons.toml`   by hand: why a number that is missed is missed
===============  =====================================================================
"""
