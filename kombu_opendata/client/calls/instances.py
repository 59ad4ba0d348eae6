"""Create and list a broker's instances, over a connection to any of them."""

from __future__ import annotations

from ...protocol.messages.admin_messages import CreateInstance, InstanceCreated, InstanceList, ListInstances
from ..session.broker_connection import BrokerConnection


def create_instance(connection: BrokerConnection, name: str) -> bool:
    """Create an instance, which clients may then name in their URLs; returns False if it exists already.

    Raises:
        RequestError: the name is not valid for an instance.
        StoreError: the store can't hold it.
    """
    answer: InstanceCreated = connection.call(CreateInstance(0, name))
    return answer.created


def list_instances(connection: BrokerConnection) -> dict[str, bool]:
    """The names of the instances, and whether each is open. For a store in a bucket, only those that are open."""
    answer: InstanceList = connection.call(ListInstances(0))
    return dict(sorted(answer.instances.items()))
