# Made by tools/unasync.py from ../_async/broker_admin.py: change that one, then run the script.
"""The broker itself: its report, its maintenance, its files, its instances, its standby."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...protocol import messages as m
from .base import Base


class Broker(Base):
    """Calls about the broker as a whole. Where users log in, most need the role admin or operator."""

    def status(self) -> dict[str, Any]:
        """The broker's report on itself: version, store, instances, maintenance; see ``opendata-queue status``."""
        answer: m.Status = self._calls.call(m.GetStatus(0))
        return answer.report

    def whoami(self) -> m.Identity:
        """What the broker takes this client for: its user, and what that one may do in the instance."""
        answer: m.Identity = self._calls.call(m.WhoAmI(0))
        return answer

    def maintain(self, duties: Iterable[str] = ()) -> dict[str, Any]:
        """Have the broker do maintenance duties; returns its report. Other calls continue meanwhile.

        This is safe at any time and from several clients at once: a duty that is running is waited for, not run twice.

        Args:
            duties: some of ``route``, ``expire_leases`` and ``collect``; empty means all of them.

        Returns:
            As :func:`kombu_opendata.client.calls.maintain.maintain`, which has a timeout.
        """
        answer: m.Maintained = self._calls.call_apart(m.Maintain(0, list(duties), 0.0))
        return answer.report

    def reload(self) -> m.Reloaded:
        """Let the broker read its files of users and certificates again; returns what was new, gone or changed.

        Raises:
            StartError: a file can't be used; what it says stays as before.
        """
        answer: m.Reloaded = self._calls.call(m.Reload(0))
        return answer

    def hand_over(self) -> list[str]:
        """Move the service to the connected standby, and end the broker; returns the standby's addresses.

        Raises:
            PreconditionFailed: no standby is connected.
        """
        answer: m.HandingOver = self._calls.call(m.HandOver(0))
        return list(answer.addresses)

    def create_instance(self, name: str) -> bool:
        """Create an instance, which clients may then name in their URLs; returns False if it exists already.

        Raises:
            RequestError: the name is not valid for an instance.
            StoreError: the store can't hold it.
        """
        answer: m.InstanceCreated = self._calls.call(m.CreateInstance(0, name))
        return answer.created

    def list_instances(self) -> dict[str, bool]:
        """The names of the instances, and whether each is open. For a store in a bucket, only those that are open."""
        answer: m.InstanceList = self._calls.call(m.ListInstances(0))
        return dict(sorted(answer.instances.items()))
