"""OpenData-Queue transport module for Kombu.

Messages, queue state and history are stored in SlateDB, in a folder or in an object-store bucket. One broker process
owns the store; this transport is a client of the broker and imports no storage code.

Features
========
* Type: Virtual; the broker pushes and routes messages
* Supports Direct: Yes
* Supports Topic: Yes
* Supports Fanout: Yes
* Supports Headers: Yes
* Supports Priority: Yes, 0 to 255, higher first
* Supports TTL: Yes
* Supports Heartbeats: Yes, over TCP; the smaller of the broker's ``--heartbeat`` and Kombu's ``heartbeat`` applies

Publishes are confirmed: when the call returns, the message is durable, and it is stored once even if the connection
broke during the call. Consumers, leases and acknowledgements survive a restart of the broker. A delivery tag that is
settled, or belongs to another channel, is refused with a precondition error.

Connection String
=================

========================================================  =========================================================
URL                                                       broker
========================================================  =========================================================
``opendata:///abs/folder``                                embedded; the first client that needs it starts it
``opendata://[USER:SECRET@]HOST[:PORT][/INSTANCE]``       over TCP; port 5677 and instance ``default`` if not given
``opendatas://[USER:SECRET@]HOST[:PORT][/INSTANCE]``      over TLS
``opendata://[USER:SECRET@]HOST,HOST:PORT[/INSTANCE]``    the active broker of a store and its standbys
``opendata://[USER:SECRET@]%2FPATH%2FSOCKET[/INSTANCE]``  on this machine, over its Unix socket
``opendata+memory://NAME``                                inside this process, for unit tests
========================================================  =========================================================

Hosts separated by ``,`` share one store: sessions, leases and unconfirmed publishes continue at the active one. Several
URLs, separated by ``;``, are tried in turn, each with its own session. The URL of an object store belongs to the
broker, never to a client.

Transport Options
=================

=====================  =======  =====================================================================
option                 default  meaning
=====================  =======  =====================================================================
``start_timeout``      15       seconds for the startup of an embedded broker
``publish_mode``       confirm  ``confirm``: a publish returns when it is durable; ``pipeline``: when it is sent
``pipeline_depth``     1000     publishes in flight, 1 to 1,000 (and 8 MiB); a further publish waits
``reconnect_timeout``  10       seconds that calls wait for the resume of a lost connection before they raise an error
``resume_timeout``     60       seconds for which consumers try to resume their session
``close_timeout``      5        seconds that closing waits for the broker
``idle_exit``          60       seconds without clients after which an embedded broker exits
``deadletter_queue``   none     a queue for messages that no queue takes, created when needed; publishes are confirmed
``body_encoding``      base64   how ``Channel._get`` encodes bodies; messages that are consumed are not encoded
``broker_options``     none     ``metrics``, ``log_retention``, ``retention_bytes``, … of an embedded broker
``task_outcomes``      True     whether a Celery worker reports the outcomes of its tasks
``consumer_name``      host:pid the consumer id in the broker's records; in a Celery worker its node name
=====================  =======  =====================================================================

With ``publish_mode`` "pipeline" the confirmations are awaited by ``channel.flush()`` or
``connection.connection.flush()``, at the close of the connection and at the exit of the process (not if it is killed).
The next publish (which is then not sent), flush or close raises ``PublishFailed`` for the failed publishes; its
``failed`` lists each message's exchange, routing key, task id, message id and error. At the end of the process they are
logged. ``with kombu_opendata.batch(app):`` sends the publishes of its block in this way, and raises at its end.

For TLS, Kombu's ``ssl`` parameter (Celery: ``broker_use_ssl``) is True, or a dictionary with ``ca_certs``,
``certfile``, ``keyfile``, ``keyfile_password``, ``cert_reqs``, ``check_hostname``, ``ciphers``, ``server_hostname`` or
``context``. The broker's certificate is verified unless ``cert_reqs`` disables it.
"""

from __future__ import annotations

from .channel import Channel
from .kombu_message import Message
from .transport import TLSTransport, Transport

__all__ = ["Channel", "Message", "TLSTransport", "Transport"]
