"""The last import of the server of forks."""

from __future__ import annotations

from .fork_server import end_with_parent

end_with_parent()
