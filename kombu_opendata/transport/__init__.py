"""OpenData-Queue transport module for Kombu.

Messages, queue state and history live in SlateDB: in a folder, or in an object-store bucket. One broker process owns
the store; this transport is a thin client of it and imports no storage code.

Features
========
* Type: Virtual; messages are pushed, and the broker routes
* Supports Direct: Yes
* Supports Topic: Yes
* Supports Fanout: Yes
* Supports Headers: Yes
* Supports Priority: Yes, 0 to 255, higher first
* Supports TTL: Yes
* Supports Heartbeats: Yes, over TCP; the smaller of the broker's ``--heartbeat`` and Kombu's ``heartbeat`` counts

Publishes are confirmed: a call that returned is durable, and is stored once however often the connection broke
meanwhile. Consumers, leases and acknowledgements survive a broker restart. A delivery tag that is settled, or not of
this channel, is refused with a precondition error.

Connection String
=================

========================================================  =========================================================
URL                                                       broker
========================================================  =========================================================
``opendata:///abs/folder``                                embedded: started by the first client that needs it
``opendata://[USER:SECRET@]HOST[:PORT][/INSTANCE]``       run by somebody, TCP; port 5677, instance ``default``
``opendatas://[USER:SECRET@]HOST[:PORT][/INSTANCE]``      the same over TLS
``opendata://[USER:SECRET@]%2FPATH%2FSOCKET[/INSTANCE]``  run by somebody on this machine, over its Unix socket
``opendata+memory://NAME``                                inside this process, for unit tests
========================================================  =========================================================

Several URLs, separated by ``;``, are tried in turn. An object store's URL is given to the broker, never to a client.

Transport Options
=================

=====================  =======  =====================================================================
option                 default  meaning
=====================  =======  =====================================================================
``start_timeout``      15       seconds an embedded broker may take to come up
``publish_mode``       confirm  ``confirm``: a publish returns when it is durable; ``pipeline``: when it is sent
``pipeline_depth``     1000     publishes in flight, 1 to 1,000 (and 8 MiB); who publishes more waits
``reconnect_timeout``  10       seconds after the loss of a connection at which calls that wait for it raise an error
``resume_timeout``     60       seconds after the loss for which consumers go on trying to resume their session
``close_timeout``      5        seconds that closing waits for the broker
``idle_exit``          60       seconds without a client after which an embedded broker exits
``deadletter_queue``   none     a queue, made when needed, for messages that no queue takes; a publish is confirmed then
``body_encoding``      base64   how ``Channel._get`` encodes bodies; messages on their usual way are not encoded
``broker_options``     none     ``metrics``, ``log_retention``, ``retention_bytes``, … of an embedded broker
``consumer_name``      host:pid the consumer id in the broker's records
=====================  =======  =====================================================================

With ``publish_mode`` "pipeline" the confirmations are waited for by ``channel.flush()`` or
``connection.connection.flush()``, when the connection is closed and when the process ends (not when it is killed).
What failed is raised as ``PublishFailed``, by the next publish (which is then not sent), flush or close; its ``failed``
has each message's exchange, routing key, task id, message id and error. At the end of the process it is logged. For a
loop, ``with kombu_opendata.batch(app):`` does so for its block alone, and raises at its end.

TLS takes Kombu's ``ssl`` parameter (Celery: ``broker_use_ssl``): True, or a dictionary with ``ca_certs``,
``certfile``, ``keyfile``, ``keyfile_password``, ``cert_reqs``, ``check_hostname``, ``ciphers``, ``server_hostname`` or
``context``. The broker's certificate is verified unless ``cert_reqs`` says otherwise.
"""

from __future__ import annotations

from .channel import Channel
from .kombu_message import Message
from .transport import TLSTransport, Transport

__all__ = ["Channel", "Message", "TLSTransport", "Transport"]
