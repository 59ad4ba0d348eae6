"""Calls about the broker: its report, maintenance, files, instances and standby."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..protocol import messages as m
from .base import Base


class Broker(Base):
    """Calls about the broker as a whole. If users log in, most calls need the role admin or operator."""

    def status(self) -> dict[str, Any]:
        """Return the broker's report on its version, store, instances and maintenance.

        See ``opendata-queue status``.
        """
        answer: m.Status = self.calls.call(m.GetStatus(0))
        return answer.report

    def whoami(self) -> m.Identity:
        """Return the user of this client, and the permissions of that user in the instance."""
        answer: m.Identity = self.calls.call(m.WhoAmI(0))
        return answer

    def maintain(self, duties: Iterable[str] = ()) -> dict[str, Any]:
        """Run maintenance duties in the broker and return its report. Other calls are not blocked.

        This is safe at any time and from several clients concurrently: a request for a running duty waits for its end.

        Args:
            duties: some of ``route``, ``expire_leases`` and ``collect``; empty means all of them.

        Returns:
            The report that :func:`kombu_opendata.client.maintain.maintain` describes; that function has a
            timeout.
        """
        answer: m.Maintained = self.calls.call_apart(m.Maintain(0, list(duties), 0.0))
        return answer.report

    def reload(self) -> m.Reloaded:
        """Reload the broker's files of users and certificates; return the additions, removals and changes.

        Raises:
            StartError: a file can't be used; its previous contents stay in effect.
        """
        answer: m.Reloaded = self.calls.call(m.Reload(0))
        return answer

    def hand_over(self) -> list[str]:
        """Hand over to the connected standby and end the broker; return the standby's addresses.

        Raises:
            PreconditionFailed: no standby is connected.
        """
        answer: m.HandingOver = self.calls.call(m.HandOver(0))
        return list(answer.addresses)

    def create_instance(self, name: str) -> bool:
        """Create an instance, which clients may then name in their URLs; return False if it exists already.

        Raises:
            RequestError: the name is not valid for an instance.
            StoreError: the store can't hold an instance.
        """
        answer: m.InstanceCreated = self.calls.call(m.CreateInstance(0, name))
        return answer.created

    def list_instances(self) -> dict[str, bool]:
        """Return the names of the instances, with True for open ones.

        For a store in a bucket, only open ones are listed.
        """
        answer: m.InstanceList = self.calls.call(m.ListInstances(0))
        return dict(sorted(answer.instances.items()))
