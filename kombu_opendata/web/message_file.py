"""The body of a message as a file."""

from __future__ import annotations

from fastapi import Response

from .visit import Visit


async def body_file(visit: Visit, id: int) -> Response:
    """The body as it is stored, which browsers save and never show.

    Raises:
        MessageNotFound: there is no such message (any more).
        CorruptRecord: it can't be read.
    """
    stored = await visit.broker.client.get(id)
    if stored.message.error is not None:
        raise stored.message.error
    headers = {"Content-Disposition": f'attachment; filename="message-{id}.bin"', "X-Content-Type-Options": "nosniff"}
    return Response(stored.message.raw, media_type="application/octet-stream", headers=headers)
