"""Messages of the wire protocol, which ``<topic>_messages.py`` define, and the union that each side decodes.

A message is a msgpack array; its first element is the number of the message type (``tag``). ``rid`` is the number of a
request: the client chooses it and the reply repeats it. A message without ``rid`` gets no reply. Times are milliseconds
since the Unix epoch, UTC. See docs/rfcs/0002-wire-protocol.md.
"""

# mypy: implicit-reexport
# ruff: noqa: F403, UP007

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, Union

from .admin_messages import *
from .admin_messages import Prepared, StandbyHello
from .delivery_messages import *
from .failure_messages import *
from .flow_messages import *
from .history_messages import *
from .message_base import WireMessage
from .metrics_messages import *
from .queue_messages import *
from .replay_messages import *
from .result_messages import *
from .session_messages import *
from .session_messages import Hello, Resume
from .staging_messages import *
from .topology_messages import *

#: messages of clients and standbys that are not operations: they open a connection, or reply to the broker
GREETINGS = (Hello, Resume, StandbyHello, Prepared)
_messages = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, WireMessage) and isinstance(value.__struct_config__.tag, int)
]
#: operations in the order of their modules
OPERATIONS = tuple(message for message in _messages if hasattr(message, "operation"))

if TYPE_CHECKING:
    ClientMessage: TypeAlias = WireMessage
    BrokerMessage: TypeAlias = WireMessage
else:
    #: messages that a client sends
    ClientMessage = Union[(*OPERATIONS, *GREETINGS)]
    #: messages that a broker sends
    BrokerMessage = Union[tuple(message for message in _messages if message not in (*OPERATIONS, *GREETINGS))]
