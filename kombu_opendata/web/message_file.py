"""Download of a message's body."""

from __future__ import annotations

from fastapi import Response

from .visit import Visit


async def body_file(visit: Visit, id: int) -> Response:
    """Return the body as it is stored, as a file that browsers save and never show.

    Raises:
        MessageNotFound: there is no such message, or it was deleted.
        CorruptRecord: the body can't be read.
    """
    stored = await visit.broker.client.get(id)
    if stored.message.error is not None:
        raise stored.message.error
    headers = {"Content-Disposition": f'attachment; filename="message-{id}.bin"', "X-Content-Type-Options": "nosniff"}
    return Response(stored.message.raw, media_type="application/octet-stream", headers=headers)
