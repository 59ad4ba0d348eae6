"""Make and list a broker's instances, over a connection to any of them."""

from __future__ import annotations

from ...protocol.admin_messages import CreateInstance, InstanceCreated, InstanceList, ListInstances
from ..session.broker_connection import BrokerConnection


def create_instance(connection: BrokerConnection, name: str) -> bool:
    """Make an instance, which clients may then name in their URLs; returns whether it is new.

    Raises:
        RequestError: not a name for an instance.
        StoreError: the store does not take it.
    """
    answer: InstanceCreated = connection.call(CreateInstance(0, name))
    return answer.created


def list_instances(connection: BrokerConnection) -> dict[str, bool]:
    """The names of the instances, and whether each is open. Of a store in a bucket, only the open ones."""
    answer: InstanceList = connection.call(ListInstances(0))
    return dict(sorted(answer.instances.items()))
