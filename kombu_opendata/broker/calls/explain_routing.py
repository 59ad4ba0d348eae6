"""The explanation of a queue's routing; :mod:`kombu_opendata.client.calls.explain_routing` has the format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import NotFound, RequestError, StoreError
from ...protocol import messages as m
from ...protocol.envelope import open_envelope
from ...protocol.permissions import check_stored_message
from ...selectors import Explanation, Selector, compile_selector
from ...selectors.selector import explain as explain_condition
from ...storage.commit.commits import Commits
from ...storage.messages.payloads import Payloads
from ...storage.read.queue_pages import QueuePages
from ...storage.records import keys
from ...storage.routing import header_match
from ...storage.routing.queue_filters import QueueDefinition, RouteBinding
from ...storage.state.store_state import StoreState
from ..model.name_checks import MAX_NAME_BYTES
from .dispatch.context import Context
from .dispatch.registry import handles

#: the maximum number of explained bindings; matching ones come first
MAX_BINDINGS = 50
_PARTS_OF_A_BINDING = 20

#: the headers of the envelope; None if only the texts of the metadata are known
Typed = Mapping[Any, Any] | None


@dataclass(frozen=True, slots=True)
class ExplainCalls:
    """The explanation of a queue, or of a filter alone."""

    _state: StoreState
    _commits: Commits
    _payloads: Payloads
    _pages: QueuePages

    @handles(m.Explain)
    async def explain(self, call: Context, msg: m.Explain) -> m.Explained:
        if not msg.queue:
            if not msg.filter:
                raise RequestError("nothing to explain: give a queue or a filter")
        elif msg.filter:
            raise RequestError("give a queue or a filter, not both: a queue has its own filter")
        if msg.message_id < 0:
            return m.Explained(msg.rid, await self._report(call, msg, msg.headers, None))
        if msg.headers:
            raise RequestError("give a message id or headers, not both")
        if msg.message_id >= keys.MAX_MESSAGE_ID:
            raise RequestError(f"there is no message id {msg.message_id}", message_id=msg.message_id)
        headers = await self._metadata(msg.message_id)
        check_stored_message(call.session.rights, headers)
        typed = await self._typed_headers(msg.message_id)
        return m.Explained(msg.rid, await self._report(call, msg, headers, typed))

    async def _metadata(self, id: int) -> dict[str, str]:
        about = await self._pages.metadata_of(id)
        if about is None and id < self._state.next_id:  # a staged row may be in the journal only
            await self._commits.catch_up()
            about = await self._pages.metadata_of(id)
        if about is None:
            raise NotFound(
                f"no message {id} is stored: it was never published, only transient queues got it, or it has expired",
                message_id=id,
            )
        return dict(about.headers)

    async def _typed_headers(self, id: int) -> Typed:
        """Return the typed headers, which a headers exchange compares; the metadata has only texts."""
        try:
            envelope = await self._payloads.read(id)
        except StoreError:
            return None
        fields = open_envelope(envelope or b"")
        return None if fields is None else fields[3]

    async def _report(self, call: Context, msg: m.Explain, headers: dict[str, str], typed: Typed) -> dict[str, Any]:
        """Explain in a thread: a filter, or a queue with thousands of bindings, has too many parts for the loop."""
        if not msg.queue:
            return await asyncio.to_thread(_filter_report, compile_selector(msg.filter), headers)
        name = call.queue(msg.queue).name
        definition, is_routed = self._state.topology.definition_of(name), self._is_routed(name, headers, typed)
        return await asyncio.to_thread(_queue_report, name, definition, is_routed, headers, typed)

    def _is_routed(self, queue: str, headers: dict[str, str], typed: Typed) -> bool:
        exchange, key = headers.get("exchange", ""), headers.get("routing_key", "")
        if len(key) > MAX_NAME_BYTES:
            return False  # no message has such a key
        header_values = headers if typed is None else typed
        try:
            return queue in self._state.topology.route(exchange, key, lambda: header_values, headers)
        except NotFound:
            return False


def _filter_report(selector: Selector, headers: dict[str, str]) -> dict[str, Any]:
    explanation = selector.explain(headers)
    return {"matches": explanation.value is True, "filter": explanation.to_dict()}


def _queue_report(
    name: str, definition: QueueDefinition, is_routed: bool, headers: dict[str, str], typed: Typed
) -> dict[str, Any]:
    bindings = [_binding(binding, headers, typed) for binding in definition.bindings]
    bindings.sort(key=lambda binding: binding["matches"] is not True)
    queue_filter = definition.filter
    return {
        "queue": name,
        "matches": is_routed,
        "mode": None if queue_filter is None else queue_filter.mode,
        "filter": None if queue_filter is None else queue_filter.selector.explain(headers).to_dict(),
        "bindings": [_explained(binding, headers) for binding in bindings[:MAX_BINDINGS]],
        "bindings_omitted": max(0, len(bindings) - MAX_BINDINGS),
    }


def _binding(binding: RouteBinding, headers: dict[str, str], typed: Typed) -> dict[str, Any]:
    value: bool | None
    if binding.type == "headers" and typed is not None:
        value = headers.get("exchange") == binding.exchange and header_match.matches(binding.arguments, typed)
    else:
        value = explain_condition(binding.condition, headers, max_parts=1).value
    return {"binding": binding, "matches": value}


def _explained(found: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    binding: RouteBinding = found["binding"]
    explanation: Explanation = explain_condition(binding.condition, headers, max_parts=_PARTS_OF_A_BINDING)
    return {
        "exchange": binding.exchange,
        "type": binding.type,
        "routing_key": binding.routing_key,
        "matches": found["matches"] is True,
        "explanation": explanation.to_dict(),
    }
