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

URLs are described in :mod:`kombu_opendata.url`, transport options in docs/settings.md. Hosts separated by ``,`` share
one store: sessions, leases and unconfirmed publishes continue at the active broker. Several URLs, separated by ``;``,
are tried in turn, each with a separate session. Only the broker needs the URL of an object store.

With ``publish_mode`` "pipeline", a publish returns before it is confirmed. ``channel.flush()`` or
``connection.connection.flush()`` waits for the confirmations, and so do the close of the connection and the exit of a
process that is not killed. After a publish has failed, the next publish, flush or close raises ``PublishFailed``; that
next publish is not sent. Its ``failed`` lists each message's exchange, routing key, task id, message id and error.
Failures at the exit of the process are logged. ``with kombu_opendata.batch(app):`` sends the publishes of its block in
this way, and raises at its end.

For TLS, Kombu's ``ssl`` parameter (Celery: ``broker_use_ssl``) is True, or a dictionary with ``ca_certs``,
``certfile``, ``keyfile``, ``keyfile_password``, ``cert_reqs``, ``check_hostname``, ``ciphers``, ``server_hostname`` or
``context``. The broker's certificate is verified unless ``cert_reqs`` disables it.
"""

from __future__ import annotations

from .channel import Channel
from .kombu_message import Message
from .transport import TLSTransport, Transport

__all__ = ["Channel", "Message", "TLSTransport", "Transport"]
