"""Driver on a cluster, whose app only ``--py-files`` has: ``spark-submit … spark_cluster_job.py ROWS``."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kombu_opendata.spark import submit_tasks

spark = SparkSession.builder.getOrCreate()
rows = spark.range(0, int(sys.argv[1]), numPartitions=4)
task = F.when(F.col("id") % 2 == 0, "ship.even").otherwise("ship.odd")
job = submit_tasks(rows, task, app="shipping:app", args=["id"], job_id="shipped")
again = submit_tasks(rows, task, app="shipping:app", args=["id"], job_id="shipped")
rows.write.format("opendata").mode("append").options(app="shipping:app", task="ship.odd", args="id").save()
counts = job.wait_routed(timeout=120).queues
messages = {row.task: row["count"] for row in job.messages("task").groupBy("task").count().collect()}
print("queues:", {queue: counts[queue].routed for queue in sorted(counts)}, "added:", job.added, again.added)
print("messages:", dict(sorted(messages.items())))
spark.stop()
