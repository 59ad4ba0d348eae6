"""The benchmark: this broker, RabbitMQ and Redis in one run, as ratios.

Run it with ``make bench`` or ``python -m tests.benchmarks --out docs/benchmarks.md``.

===============  =====================================================================
module           job
===============  =====================================================================
`__main__`       the command line
`targets`        the rows of the table and the numbers asked, as data
`results`        samples, medians, ratios, verdicts
`peers`          which brokers there are; starts and stops ours
`servers`        RabbitMQ, Redis and PostgreSQL on ports and folders of their own
`processes`      runs functions in processes of their own, together behind a barrier
`kombu_api`      Kombu's names, for the type checker
`clients`        what a measured Kombu client does (runs in those processes)
`celery_app`     what a measured Celery producer and worker do
`workloads`      one round of each comparison
`latency`        one round of each comparison: from a publish to the start of handling
`broker_cpu`     one round of each comparison: CPU of the broker, bytes written to the device
`disk_samples`   what follows from looking at a disk over and over (ours only)
`device_writes`  bytes written to a folder's device
`shapes`         one round of each comparison: sizes, prefetches, fan-out, many queues, priorities, late acks
`floor`          the least that clients can cost: on Kombu's in-memory transport
`history`        first pages of ten million messages, and what history costs consumers (ours only)
`disk`           bytes on the disk and written, under a steady load (ours only)
`backlog`        ten million waiting messages, in ours and in RabbitMQ
`peers_backlog`  a million waiting messages in ours, RabbitMQ and Redis
`curves`         one size at a time, from none or one to the largest (ours only)
`curve_rows`     these sizes and what is measured, as data
`staging`        a million rows as staged batches (ours only)
`delayed`        a million messages that fall due at once (ours only)
`durability`     with fsync and without, and on an S3-compatible server (ours only)
`celery_rows`    a worker that waits, and one whose broker is killed (ours only)
`startup`        import time and the first connect (ours only)
`machine`        facts about the machine and the versions
`record`         the samples behind the page, in a file
`report`         the Markdown page and the terminal table
`capacity`       docs/capacity.md, with the model of `group_commit` and the constants of `capacity.toml`
`plots`          the pictures of the page
`reasons.toml`   by hand: why a number that is missed is missed
`limits.md`      by hand: what bounds the main numbers
===============  =====================================================================
"""
