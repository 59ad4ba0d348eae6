"""OpenData-Queue as a Celery broker: messages, queues and history in a folder or in an object-store bucket.

Importing this package makes the broker URLs known to Kombu; it loads neither the transport nor the storage engine.
Celery apps need no import: Kombu loads the serializer entry point of this package, which imports it.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from .batching import Batch, batch
from .errors import (
    AccessRefused,
    ConnectionLost,
    FailedPublish,
    InvalidMessage,
    InvalidURL,
    MessageTooLarge,
    NotFound,
    OpenDataError,
    PreconditionFailed,
    ProtocolError,
    PublishFailed,
    RequestError,
    RetryLater,
    StartError,
    StoreError,
    StoreFull,
    Unroutable,
    VersionMismatch,
)
from .url import STORE_SCHEMES

__version__ = "0.1.0"

__all__ = [
    "AccessRefused",
    "Batch",
    "ConnectionLost",
    "FailedPublish",
    "InvalidMessage",
    "InvalidURL",
    "MessageTooLarge",
    "NotFound",
    "OpenDataError",
    "PreconditionFailed",
    "ProtocolError",
    "PublishFailed",
    "RequestError",
    "RetryLater",
    "StartError",
    "StoreError",
    "StoreFull",
    "Unroutable",
    "VersionMismatch",
    "__version__",
    "batch",
]

TRANSPORT_ALIASES.update(
    {
        "opendata": "kombu_opendata.transport:Transport",
        "opendatas": "kombu_opendata.transport:TLSTransport",
        "opendata+memory": "kombu_opendata.transport:Transport",
    }
)
# An object store's URL is no broker URL: the transport says what to do instead of "No such transport".
for _scheme in STORE_SCHEMES - {"http", "https"}:
    for _alias in (_scheme, f"opendata+{_scheme}"):
        TRANSPORT_ALIASES.setdefault(_alias, "kombu_opendata.transport:Transport")
