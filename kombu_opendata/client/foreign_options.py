"""Transport options of other brokers, Celery's settings without effect, and their replacements in this broker.

Many apps share their settings between brokers, so these are not errors. Each is reported once, because the user
relies on its effect. ``tools/site/compatibility_page.py`` lists this table in docs/compatibility.md.
"""

from __future__ import annotations

from typing import NamedTuple


class ForeignOptions(NamedTuple):
    """Options of other brokers.

    Attributes:
        names: the options.
        brokers: the transports of Kombu, or the result backends of Celery, that define them.
        instead: the replacement in this broker.
    """

    names: tuple[str, ...]
    brokers: str
    instead: str


#: their brokers, their replacement, and the names of the options
_TABLE = (
    ("Redis, SQS, pgmq, Pub/Sub, Service Bus",
     "a message is leased as long as its consumer is connected",
     "visibility_timeout ack_deadline_seconds max_lock_renewal_duration peek_lock_seconds use_lock_renewal"),
    ("Redis", "the broker returns the messages of a lost consumer",
     "ack_emulation unacked_index_key unacked_key unacked_mutex_expire unacked_mutex_key unacked_restore_interval "
     "unacked_restore_limit unacked_restore_throttle"),
    ("Redis", "queues have priorities 0 to 255, strictly the highest first",
     "priority_steps queue_order_strategy sep"),
    ("Redis, SQS", "the broker routes by exchanges and bindings",
     "fanout_patterns fanout_prefix sentinel_fanout_compat supports_fanout predefined_exchanges"),
    ("Redis, SQS, pgmq, Pub/Sub, Azure",
     "each folder and instance has its own queues: use another URL",
     "global_keyprefix queue_name_prefix"),
    ("Redis Sentinel", "the URL lists the hosts of the broker and its standby",
     "master_name min_other_sentinels sentinel_kwargs"),
    ("Redis, RabbitMQ, MongoDB, Kafka, pgmq", "`broker_connection_timeout` limits an attempt to connect",
     "connect_timeout connection_wait_time_seconds pool_timeout socket_connect_timeout socket_timeout"),
    ("Redis, RabbitMQ, Pub/Sub, Service Bus",
     "a lost connection is noticed (`broker_heartbeat`) and resumed (`reconnect_timeout`, `resume_timeout`)",
     "additional_connection_errors health_check_interval heartbeat read_timeout reauth_check_interval "
     "retry_backoff_factor retry_backoff_max retry_on_timeout retry_policy retry_timeout_seconds retry_total "
     "socket_keepalive socket_keepalive_options socket_settings uamqp_keep_alive_interval write_timeout"),
    ("Redis, pgmq, SQL", "`broker_pool_limit` and the limits of a user bound the connections",
     "max_connections max_overflow pool_size"),
    ("Redis, RabbitMQ", "`consumer_name` names the client to the broker",
     "client_name client_properties"),
    ("RabbitMQ, MongoDB, Kafka, Qpid, SLMQ", "`broker_use_ssl` has the options of TLS",
     "ca_certs cert_reqs certfile keyfile sasl_mechanism secure security_protocol ssl ssl_certfile ssl_keyfile "
     "ssl_skip_hostname_check ssl_trustfile"),
    ("RabbitMQ, MongoDB, pgmq", "the URL has host, user, secret and instance",
     "authentication conn_string default_database default_hostname default_port host login_method login_response "
     "password userid virtual_host"),
    ("RabbitMQ", "a publish is confirmed when it is durable, unless `publish_mode` is `pipeline`",
     "confirm_publish"),
    ("RabbitMQ", "the broker's protocol is not AMQP",
     "channel_max frame_handler frame_max frame_writer locale on_blocked on_open on_tune_ok on_unblocked"),
    ("SQS", "clients connect to the URL's broker, and only the broker to its bucket",
     "client-config is_secure port region regioninfo sts_role_arn sts_token_buffer_time sts_token_timeout"),
    ("SQS, pgmq", "apps declare queues, with the arguments that they need",
     "fifo_mode predefined_queues queue_tags sqs-creation-attributes"),
    ("SQS", "`x-retry-delay` of a queue, or `retry_backoff` of a task",
     "backoff_policy backoff_tasks"),
    ("SQS, pgmq, Pub/Sub, Azure, Kafka, virtual transports", "messages are pushed to consumers",
     "max_poll_seconds notify_throttle_interval_ms poll_interval_ms polling_interval use_notify wait_time_seconds"),
    ("SQS, Pub/Sub", "messages are pushed to consumers, whole and once",
     "ack_modify_batch_size bulk_max_messages enable_exactly_once_delivery fetch_message_attributes "
     "sqs_base64_encoding"),
    ("Pub/Sub, MongoDB", "`expires` of a task; `x-message-ttl`, `x-expires` of a queue",
     "expiration_seconds ttl"),
    ("MongoDB, pgmq, SQL, file system", "the broker owns its store",
     "broadcast_collection calc_queue_size capped_queue_size control_folder data_folder_in data_folder_out "
     "init_extension message_tablename messages_collection processed_folder queue_tablename queues_collection "
     "routing_collection store_processed"),
    ("SQL", "the broker owns its store",
     "echo pool_pre_ping pool_recycle"),
    ("Kafka", "a queue has no partitions, and its store no replicas",
     "kafka_admin_config kafka_common_config kafka_consumer_config kafka_producer_config num_partitions "
     "replication_factor topic_config"),
    ("Redis", "the results of a chord are always in order",
     "result_chord_ordered"),
)  # fmt: skip
FOREIGN_OPTIONS = tuple(ForeignOptions(tuple(names.split()), brokers, instead) for brokers, instead, names in _TABLE)
BY_NAME = {name: options for options in FOREIGN_OPTIONS for name in options.names}

#: settings of Celery that a worker reports
UNUSED_BY_WORKERS = {
    "broker_native_delayed_delivery_queue_type": "every queue keeps its tasks until they are due",
    "task_create_missing_queue_type": "there is one type of queue",
    "task_default_delivery_mode": "durable queues always store their messages",
    "task_default_queue_type": "there is one type of queue",
    "task_queue_max_priority": "every queue has priorities 0 to 255",
    "worker_detect_quorum_queues": "there is one type of queue",
    "worker_eta_task_limit": "the broker keeps tasks until they are due",
}
#: settings of Celery that the result backend reports; a name may end with ``*``
UNUSED_BY_RESULTS = {
    "redis_*": "its replacement is an option of `result_backend_transport_options`, or a part of the URL",
    "result_chord_retry_interval": "the broker counts the parts of a chord",
}
