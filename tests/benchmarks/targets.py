"""The rows of the benchmark's table and the numbers asked for, as data."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "ours"
RABBITMQ = "rabbitmq"
REDIS = "redis"
QUORUM = "quorum"
"""RabbitMQ with quorum queues: the node of `RABBITMQ`."""

ALWAYS = "always"
"""A Redis that syncs its file before it answers."""

VOLATILE = "volatile"
"""A Redis that writes no file: what it holds is lost with its process."""

POSTGRES = "postgres"
"""Kombu's SQLAlchemy transport on PostgreSQL."""

MEMORY = "memory"
"""Kombu's in-memory transport, which has no broker: the least that the same clients can cost."""

EMPTY = "empty"
"""The series that holds our own numbers on an empty queue, for the rows about a backlog."""

WITHOUT = "without"
"""The series that holds our own numbers without what a row is about: a replay, history."""

TWO = "two"
"""The series of the same tasks sent by two processes with ``apply_async``, for the rows about Spark."""

ONE = "one"
"""The series of one producer, for the rows about 64 of them."""

TITLES = {
    OURS: "ours",
    RABBITMQ: "RabbitMQ",
    REDIS: "Redis",
    QUORUM: "RabbitMQ quorum",
    ALWAYS: "Redis `always`",
    VOLATILE: "Redis in memory",
    POSTGRES: "PostgreSQL",
    MEMORY: "in memory, no broker",
    EMPTY: "an empty queue",
    WITHOUT: "ours without it",
    TWO: "two processes",
    ONE: "one producer",
}


@dataclass(frozen=True)
class AtLeast:
    """The median must be at least `factor` times the median of the series `against`."""

    factor: float
    against: str

    def __str__(self) -> str:
        return f"≥ {self.factor:g} × {TITLES[self.against]}"


@dataclass(frozen=True)
class AtMostTimes:
    """The median must be at most `factor` times the median of the series `against`."""

    factor: float
    against: str

    def __str__(self) -> str:
        return f"≤ {self.factor:g} × {TITLES[self.against]}"


@dataclass(frozen=True)
class AtMost:
    """The median must be at most `limit`, in the row's unit."""

    limit: float

    def __str__(self) -> str:
        return f"≤ {self.limit:g}"


Asked = AtLeast | AtMostTimes | AtMost


@dataclass(frozen=True)
class Row:
    """One measured quantity: its key, the text that names it, its unit and what is asked of it."""

    key: str
    work: str
    unit: str
    asked: tuple[Asked, ...] = ()


def _latency_rows(stage: str, work: str, *, is_asked: bool) -> tuple[Row, ...]:
    """The rows of one rate."""
    percentiles = (("p50", "p50", 1.1), ("p99", "p99", 1.2), ("p999", "p99.9", 1.5))
    return (
        *(
            Row(
                f"latency.{stage}{key}",
                f"{work}, {name}",
                "ms",
                (AtMostTimes(factor, RABBITMQ),) if is_asked else (),
            )
            for key, name, factor in percentiles
        ),
        Row(f"latency.{stage}late", f"{work}, publishes that began when the next one was due, or later", "%"),
    )


ROWS: tuple[Row, ...] = (
    Row(
        "publish.rate",
        "Kombu publish, one at a time, durable",
        "msg/s",
        (AtLeast(2.0, RABBITMQ), AtLeast(2.0, QUORUM), AtLeast(1.5, ALWAYS)),
    ),
    Row("publish.cpu", "client CPU per publish", "µs", (AtMost(100),)),
    *(
        Row(
            f"publish{count}.rate",
            f"Kombu publish, {count} processes at once, durable",
            "msg/s",
            tuple(AtLeast(2.5, peer) for peer in (RABBITMQ, QUORUM, ALWAYS)),
        )
        for count in (8, 64)
    ),
    Row("pipeline.rate", "Kombu publish without waiting (RabbitMQ: unconfirmed)", "msg/s", (AtLeast(2.0, RABBITMQ),)),
    Row("pipeline.cpu", "client CPU per publish without waiting", "µs"),
    Row("pipeline.rate8", "Kombu publish without waiting, 8 processes at once (RabbitMQ: unconfirmed)", "msg/s"),
    Row("pipeline.rate64", "Kombu publish without waiting, 64 processes at once (RabbitMQ: unconfirmed)", "msg/s"),
    Row("pipeline.send", "Celery `apply_async` without waiting", "tasks/s", (AtLeast(1.5, RABBITMQ),)),
    Row(
        "consume.rate",
        "Kombu consume + ack, prefetch 100",
        "msg/s",
        (AtLeast(6.0, RABBITMQ), AtLeast(6.0, QUORUM)),
    ),
    Row("consume.cpu", "client CPU per consume + ack", "µs", (AtMost(40),)),
    Row(
        "celery.rate",
        "Celery solo worker, prefetch multiplier 8",
        "tasks/s",
        (AtLeast(2.0, RABBITMQ), AtLeast(4.0, REDIS)),
    ),
    Row("celery.cpu", "worker CPU per task", "µs"),
    Row("celery.send", "Celery `apply_async`, durable", "tasks/s"),
    Row("prefork.rate", "Celery prefork worker of 2", "tasks/s", (AtLeast(1.6, RABBITMQ),)),
    Row("prefork8.rate", "Celery prefork worker of 8", "tasks/s"),
    Row("threads.rate", "Celery worker of 4 threads", "tasks/s", (AtLeast(2.0, RABBITMQ),)),
    Row("gevent.rate", "Celery gevent worker of 100", "tasks/s", (AtLeast(1.5, RABBITMQ),)),
    Row(
        "results.trip",
        "Celery result round trip, one client (Redis keeps the peers' results)",
        "results/s",
        (AtLeast(1.0, RABBITMQ),),
    ),
    Row("results.chord", "Celery chord of 1,000 (Redis keeps the peers' results)", "tasks/s", (AtLeast(1.0, REDIS),)),
    Row("latency.capacity", "one publisher, each publish confirmed, and a consumer (prefetch 10) beside it", "msg/s"),
    *_latency_rows("200", "publish to start at 200 msg/s", is_asked=True),
    *_latency_rows("10", "publish to start at 10 % of the broker's own capacity", is_asked=False),
    *_latency_rows("50", "publish to start at one rate for both, 50 % of the smaller capacity", is_asked=True),
    *_latency_rows("90", "publish to start at 90 % of the broker's own capacity", is_asked=False),
    Row("cpu.alone", "broker CPU per publish: one publisher, each confirmed", "µs", (AtMost(150),)),
    Row(
        "cpu.stream",
        "broker CPU per publish: one publisher that does not wait (RabbitMQ: unconfirmed)",
        "µs",
        (AtMost(35),),
    ),
    Row("cpu.stream2", "broker CPU per publish: two publishers that do not wait", "µs", (AtMost(35),)),
    Row("cpu.eight", "broker CPU per publish: 8 publishers, each confirmed", "µs"),
    Row("cpu.consumed", "broker CPU per consume + ack, prefetch 100", "µs", (AtMost(20),)),
    Row("cpu.all", "broker CPU for a message in all, until 2 s after the last one", "µs"),
    Row("cpu.written", "bytes written to the device for a message in all", "B"),
    Row("canvas.group", "Celery group of 1,000, to its last result (Redis keeps the peers' results)", "tasks/s"),
    Row("canvas.chain", "Celery chains of 50, one after the other, to their last result", "tasks/s"),
    Row("acks.early", "Celery solo worker that acks before it runs a task (`task_acks_late` off)", "tasks/s"),
    Row("acks.late", "Celery solo worker that acks after it (`task_acks_late` on)", "tasks/s"),
    *(
        row
        for size, unit in (("100 B", "msg/s"), ("10 kB", "msg/s"), ("1 MB", "MB/s"), ("10 MB", "MB/s"))
        for row in (
            Row(f"sizes.publish{size.replace(' ', '')}", f"bodies of {size}: publish, one at a time, durable", unit),
            Row(f"sizes.consume{size.replace(' ', '')}", f"bodies of {size}: consume + ack, prefetch 100", unit),
        )
    ),
    *(Row(f"prefetch.consume{limit}", f"consume + ack, prefetch {limit}", "msg/s") for limit in (1, 8, 100)),
    Row("fanout.publish", "one exchange to 10 queues: publish, one at a time, durable", "msg/s"),
    Row("fanout.deliver", "one exchange to 10 queues: consume + ack from all, prefetch 100", "deliveries/s"),
    *(
        row
        for key, text in (("1", "one queue"), ("100", "100 queues in turn"), ("most", "10,000 queues in turn"))
        for row in (
            Row(f"queues.publish{key}", f"publish to {text}, one at a time, durable", "msg/s"),
            Row(f"queues.consume{key}", f"consume + ack from {text.removesuffix(' in turn')}, prefetch 100", "msg/s"),
        )
    ),
    Row("priorities.rate", "consume + ack from a queue with priorities 0 to 9, prefetch 100", "msg/s"),
    Row("delayed.rate", "1,000,000 messages due at one moment: consume + ack from then on, prefetch 100", "msg/s"),
    Row("delayed.first", "1,000,000 messages due at one moment: first delivery after it", "ms"),
    Row("delayed.memory", "1,000,000 messages due at one moment: highest RSS of the broker", "MB"),
    *(
        row
        for key, text in (("on", "with fsync"), ("off", "without fsync (`--no-sync`)"))
        for row in (
            Row(f"sync.{key}", f"{text}: publish, one at a time", "msg/s"),
            Row(f"sync.{key}8", f"{text}: publish, 8 processes at once", "msg/s"),
        )
    ),
    *(
        row
        for ms in (5, 20, 50)
        for row in (
            Row(f"s3.one{ms}", f"bucket, {ms} ms a request: publish, one at a time", "msg/s"),
            Row(f"s3.eight{ms}", f"bucket, {ms} ms a request: publish, 8 at once", "msg/s"),
            Row(f"s3.consume{ms}", f"bucket, {ms} ms a request: consume + ack, prefetch 100", "msg/s"),
        )
    ),
    Row("backlog.memory", "10,000,000 waiting: memory of the server (RSS)", "MB", (AtMost(350),)),
    Row("backlog.peak", "10,000,000 waiting: highest RSS since the broker started", "MB"),
    Row(
        "backlog.publish", "10,000,000 waiting, at rest: publish, 8 processes at once", "msg/s", (AtLeast(0.8, EMPTY),)
    ),
    Row(
        "backlog.consume",
        "10,000,000 waiting, at rest: consume + ack, prefetch 100",
        "msg/s",
        (AtLeast(0.8, EMPTY), AtLeast(4.0, RABBITMQ)),
    ),
    Row(
        "backlog.busypublish",
        "10,000,000 waiting, during compactions: publish, 8 processes at once",
        "msg/s",
        (AtLeast(0.6, EMPTY),),
    ),
    Row(
        "backlog.busyconsume",
        "10,000,000 waiting, during compactions: consume + ack, prefetch 100",
        "msg/s",
        (AtLeast(0.6, EMPTY),),
    ),
    Row("backlog.term", "10,000,000 waiting: restart after SIGTERM, to first delivery", "s", (AtMost(5),)),
    Row("backlog.kill", "10,000,000 waiting: restart after kill -9, to first delivery", "s", (AtMost(5),)),
    Row("backlog.diskfilled", "10,000,000 waiting: disk right after the fill", "MB"),
    Row("backlog.disk", "10,000,000 waiting: disk at rest", "MB"),
    Row("peers_backlog.fill", "1,000,000 waiting in each broker: fill, 8 processes that wait for no publish", "msg/s"),
    Row("peers_backlog.publish", "1,000,000 waiting in each broker: publish, 8 processes at once", "msg/s"),
    Row(
        "peers_backlog.consume",
        "1,000,000 waiting in each broker: consume + ack, prefetch 100",
        "msg/s",
        (AtLeast(4.0, RABBITMQ),),
    ),
    Row("peers_backlog.memory", "1,000,000 waiting in each broker: memory of the server (RSS)", "MB"),
    Row("peers_backlog.disk", "1,000,000 waiting in each broker: disk", "MB"),
    Row("peers_backlog.restart", "1,000,000 waiting in each broker: start of the server to first delivery", "s"),
    Row("staging.write", "staged batches: written by 2 processes", "rows/s"),
    Row("staging.cpu", "staged batches: CPU of the writer per row", "µs"),
    Row("staging.commit", "staged batches: commit", "ms"),
    Row("staging.first", "staged batches: first delivery after the commit", "s", (AtMost(2),)),
    Row("staging.route", "staged batches: routing", "rows/s"),
    Row("staging.routecpu", "staged batches: CPU of the broker per row routed, all threads", "µs"),
    Row("staging.memory", "staged batches: growth of the broker's memory (RSS)", "MB", (AtMost(150),)),
    Row("filters.route", "routing among 1,000 filter queues of which 3 match (CPU)", "µs", (AtMost(100),)),
    Row("filters.direct", "routing without filters, a direct binding among 1,000 (CPU)", "µs"),
    Row("filters.few", "routing without filters, one queue (CPU)", "µs"),
    Row("permissions.publish", "checking a publish against a pattern of 100 queues (CPU)", "µs", (AtMost(3),)),
    Row("permissions.all", "checking a publish of a user who may do everything (CPU)", "µs", (AtMost(3),)),
    Row("permissions.new", "checking a publish to a name that was not checked before (CPU)", "µs"),
    Row("replay.time", "replay into a new queue, per stored message (50 µs are 20,000/s)", "µs", (AtMost(50),)),
    Row("replay.publish", "beside a replay: publish, 8 processes at once", "msg/s", (AtLeast(0.7, WITHOUT),)),
    Row("replay.consume", "beside a replay: consume + ack, prefetch 100", "msg/s", (AtLeast(0.7, WITHOUT),)),
    Row(
        "spark.write",
        "Spark on two cores: rows of 300 bytes written and committed, beside `apply_async` by two processes",
        "tasks/s",
        (AtLeast(20, TWO),),
    ),
    Row("spark.broker", "Spark on two cores: growth of the broker's memory (RSS)", "MB", (AtMost(150),)),
    Row("spark.driver", "Spark on two cores: growth of the driver's memory (RSS of the program)", "MB", (AtMost(150),)),
    Row("spark.first", "Spark on two cores: from the commit to the first task's run", "s", (AtMost(2),)),
    Row(
        "spark.read",
        "Spark on two cores: messages read as a frame, per message (10 µs are 100,000/s)",
        "µs",
        (AtMost(10),),
    ),
    Row("import.time", "import of the transport, over kombu's own", "ms", (AtMost(150),)),
    Row("connect.time", "first connect, cold embedded broker", "s", (AtMost(1.5),)),
    Row("eta.memory", "tasks due in an hour: growth of the worker's memory (RSS)", "MB", (AtMost(5),)),
    Row("gap.time", "kill -9 of the broker under load: gap until tasks flow again", "s", (AtMost(3),)),
    Row("gap.lost", "kill -9 of the broker under load: tasks lost", "tasks", (AtMost(0),)),
    Row("gap.twice", "kill -9 of the broker under load: tasks run twice", "tasks", (AtMost(0),)),
    Row("reconnect.plain", "kill -9 and restart: until the last of 500 clients over TCP is served", "s", (AtMost(5),)),
    Row(
        "reconnect.tls",
        "kill -9 and restart: until the last of 500 clients over TLS is served, all as one user",
        "s",
        (AtMost(5),),
    ),
    Row(
        "reconnect.users",
        "kill -9 and restart: until the last of 500 clients over TLS is served, as 50 users (an Argon2 run for each)",
        "s",
    ),
    Row("connections.memory", "the broker with 5,000 TLS connections, each with a consumer", "MB", (AtMost(400),)),
    Row("connections.each", "of that, for each connection with its queue and consumer", "kB", (AtMost(70),)),
    Row("connections.connect", "until all 5,000 are connected and consume", "s"),
    Row("connections.neighbour", "a neighbour's publish meanwhile, p99", "ms"),
    Row("connections.p50", "publish to a random one of the 5,000 queues, p50", "ms"),
    Row("connections.p99", "publish to a random one of the 5,000 queues, p99", "ms", (AtMost(5),)),
    Row(
        "reconnect.standby",
        "kill -9: until the last of 500 clients over TLS is served by a standby, all as one user",
        "s",
        (AtMost(5),),
    ),
    Row("takeover.folder.kill", "kill -9 under load: until the standby of a folder serves", "s", (AtMost(3),)),
    Row("takeover.folder.planned", "SIGTERM under load: until the standby of a folder serves", "s", (AtMost(1),)),
    Row(
        "takeover.bucket.kill",
        "kill -9 under load: until the standby of a bucket serves, 20 ms a request",
        "s",
        (AtMost(8),),
    ),
    Row(
        "takeover.bucket.planned",
        "SIGTERM under load: until the standby of a bucket serves, 20 ms a request",
        "s",
        (AtMost(1),),
    ),
    Row("takeover.bucket.frozen", "SIGSTOP under load: until the standby of a bucket serves, 20 ms a request", "s"),
    Row("takeover.lost", "all take-overs: confirmed publishes that were lost", "messages", (AtMost(0),)),
    Row(
        "takeover.again", "all take-overs: published twice, or delivered again after the ack", "messages", (AtMost(0),)
    ),
    *(
        Row(f"buckets.publish{ms}", f"bucket, {ms} ms a request: publish, over a write", "times", (AtMost(2.5),))
        for ms in (5, 50, 500)
    ),
    *(
        Row(f"buckets.many{ms}", f"bucket, {ms} ms a request: 64 producers at once", "msg/s", (AtLeast(40, ONE),))
        for ms in (5, 50, 500)
    ),
    Row("buckets.consume", "bucket, 50 ms a request: consume + ack, prefetch 100", "msg/s"),
    Row("buckets.puts", "bucket, 50 ms a request: writes and lists per 1,000 messages consumed", "requests"),
    Row("history.page", "history of 10,000,000 messages: slowest first page of a single filter", "ms", (AtMost(50),)),
    Row(
        "history.growth",
        "history of 10,000,000 messages: slowest first page, over that of 1,000,000 messages",
        "times",
        (AtMost(1.5),),
    ),
    Row("history.failures", "10,000 failures among 1,000,000 messages: first page", "ms", (AtMost(100),)),
    Row(
        "history.groups",
        "10,000 failures among 1,000,000 messages: counted by task, exception, queue and reason",
        "ms",
        (AtMost(150),),
    ),
    Row("history.consume", "consume + ack, with history and without", "msg/s", (AtLeast(0.95, WITHOUT),)),
    Row(
        "disk.load",
        "580 tasks/s, done and kept: disk without a minute's writes, over what is in use",
        "times",
        (AtMost(2),),
    ),
    Row(
        "disk.end",
        "580 tasks/s, done and kept: disk after the broker's end, over what is in use",
        "times",
        (AtMost(1.25),),
    ),
    Row("disk.worst", "580 tasks/s: disk at its largest, over live records (uncompressed)", "times", (AtMost(2.5),)),
    Row("disk.rest", "580 tasks/s: disk at rest afterwards, over live records (uncompressed)", "times", (AtMost(1.5),)),
    Row(
        "disk.written",
        "580 tasks/s: bytes written to the device, over live records (uncompressed)",
        "times",
        (AtMost(3),),
    ),
    Row("disk.writtentables", "580 tasks/s: bytes written to the device, over the tables in use (compressed)", "times"),
    Row(
        "disk.process",
        "580 tasks/s: bytes passed by the broker to calls that write, over live records (uncompressed)",
        "times",
    ),
    Row(
        "disk.writtenrest",
        "580 tasks/s: bytes written until the broker is at rest afterwards, over live records (uncompressed)",
        "times",
        (AtMost(3),),
    ),
    Row("backup.first", "backup of a store in use (100,000 messages of 2 kB): the first, of everything", "s"),
    Row("backup.next", "backup of a store in use: a later one, of what is new", "s"),
    Row("backup.restore", "restore of the last of these backups", "s"),
    Row("backup.publish", "a publish during a backup, p99", "ms"),
    Row("backup.quiet", "a publish before a backup, p99", "ms"),
    Row("outcomes.solo", "solo worker, with task outcomes and without", "tasks/s", (AtLeast(0.98, WITHOUT),)),
    Row("outcomes.soloworker", "solo worker, with task outcomes and without: CPU of the worker per task", "µs"),
    Row("outcomes.solocpu", "solo worker, with task outcomes and without: CPU of the broker per task", "µs"),
    Row(
        "outcomes.prefork", "prefork worker of 2, with task outcomes and without", "tasks/s", (AtLeast(0.98, WITHOUT),)
    ),
    Row(
        "outcomes.preforkworker",
        "prefork worker of 2, with task outcomes and without: CPU of it and its pool per task",
        "µs",
    ),
    Row("outcomes.preforkcpu", "prefork worker of 2, with task outcomes and without: CPU of the broker per task", "µs"),
    Row(
        "page.first", "page, 1,000 queues and 1,000,000 messages: first byte of the slowest view", "ms", (AtMost(150),)
    ),
    Row(
        "page.weight",
        "page, 1,000 queues and 1,000,000 messages: all that a browser loads for the first view",
        "kB",
        (AtMost(250),),
    ),
    Row("page.paint", "page, 1,000 queues and 1,000,000 messages: first paint", "ms", (AtMost(1000),)),
    Row(
        "page.memory",
        "page, 1,000 queues and 1,000,000 messages: memory of its process, also with 20 open pages",
        "MB",
        (AtMost(120),),
    ),
    Row("page.cpu", "20 open pages: CPU of the broker, of what it needs for 10,000 msg/s", "%", (AtMost(3),)),
    Row("page.busy", "the broker's share of a core, with 20 open pages and without", "%"),
    Row("idle.commits", "idle worker with events on: commits per minute", "commits", (AtMost(0),)),
)

WORKLOADS = (
    "publish", "publish8", "publish64", "pipeline", "consume", "celery", "prefork", "threads", "gevent", "results",
    "latency", "cpu",
    "prefork8", "canvas", "acks", "sizes", "prefetch", "fanout", "queues", "priorities", "delayed", "sync", "s3",
    "backlog", "staging", "filters", "permissions", "replay",
    "history", "spark", "import", "connect", "eta", "gap", "reconnect", "takeover", "connections", "buckets",
    "disk", "backup", "idle", "outcomes", "page", "curves",
    "peers_backlog",
)  # fmt: skip
"""What ``--only`` takes: the part of a row's key before the dot, or ``curves``, which has no rows."""
