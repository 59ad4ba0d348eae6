"""A broker that finds another one in the active record ends, whatever it was doing."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from kombu_opendata.broker.delivery.active_lease import ActiveLease
from kombu_opendata.broker.standby.active_record import ActiveRecord, BucketRecord
from kombu_opendata.broker.standby.active_role import ActiveRoleSettings, ClientEntry
from kombu_opendata.broker.standby.bucket_active_role import BucketActiveRole
from kombu_opendata.broker.wire.standby_connections import Gate, Standbys
from kombu_opendata.errors import OpenDataError, StoreFenced


def test_a_broker_that_was_replaced_ends_when_it_opens_an_instance() -> None:
    async def main() -> None:
        record, errors = BucketRecord("memory:///"), list[OpenDataError]()

        async def read_ahead(_names: object) -> None: ...

        standbys = Standbys(lambda: True, lambda _addresses: None)
        role = BucketActiveRole(record, ActiveRoleSettings(False, False, 1.0, (), ssl.create_default_context))
        await role.take(ClientEntry(Gate(), standbys, ActiveLease(), errors.append, read_ahead), ("here:1",))
        await role.opening("first")
        assert errors == []
        await record.write(ActiveRecord(id="another", addresses=["there:1"]), await record.read())
        with pytest.raises(StoreFenced, match="there:1") as caught:
            await role.opening("second")
        assert errors == [caught.value]

    asyncio.run(main())
