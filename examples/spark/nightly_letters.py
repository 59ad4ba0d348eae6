"""A table becomes tasks, and their outcome becomes a table. Run it cell by cell, or as a script.

In another terminal, in this folder: celery -A mail_tasks worker -Q celery,urgent
"""

# %% A session and a small table. A cluster has a session already; here `use_java` finds a Java.
import os
import sys

from mail_tasks import FOLDER, app
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kombu_opendata.spark import read_table, submit_tasks, use_java

use_java()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2,3]").appName("nightly-letters").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

COUNT = int(os.environ.get("MAIL_COUNT", "2000"))
customers = spark.range(COUNT).select(
    F.col("id").alias("customer"),
    F.concat(F.lit("Customer "), F.col("id").cast("string")).alias("name"),
    (F.col("id") % 1000 - 950.5).alias("balance"),
)

# %% Each row is a task. The job id makes it safe to run this again: the second run adds nothing.
who_is_urgent = F.when(F.col("balance") < -500, "mail.urgent").otherwise("mail.letter")
job = submit_tasks(
    customers,
    who_is_urgent,
    app=app,
    kwargs=["customer", "name", "balance"],
    headers={"night": "2026-11-21"},
    job_id="letters-2026-11-21",
)
print(f"{job.rows} tasks, {'sent' if job.added else 'sent before'}")

# %% Wait for the workers.
status = job.wait(timeout=600, progress=sys.stdout.isatty())
for queue, counts in sorted(status.queues.items()):
    print(f"{queue}: {counts.done} done, {counts.failed} failed")
print("failed:", [row.task_id for row in job.failed().limit(3).collect()])

# %% How long did tasks take from publish to done? The p95 for each task and hour, from the store itself.
messages = read_table(spark, str(FOLDER / "queue"), "messages", columns=["message_id", "task", "received_at"])
done = read_table(spark, str(FOLDER / "queue"), "done", columns=["message_id", "done_at"])
took = messages.join(done, "message_id").select(
    "task",
    F.date_trunc("hour", "received_at").alias("hour"),
    (F.col("done_at").cast("double") - F.col("received_at").cast("double")).alias("seconds"),
)
p95 = took.groupBy("task", "hour").agg(F.count("*").alias("tasks"), F.percentile("seconds", 0.95).alias("p95"))
for row in p95.orderBy("hour", "task").collect():
    print(f"{row.task} in the hour of {row.hour:%H:%M}: {row.tasks} tasks, p95 {row.p95:.3f} s")

# %%
spark.stop()
