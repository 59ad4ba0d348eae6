"""Why a queue gets a message or not. The report is described in :mod:`kombu_opendata.client.calls.explain_routing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import NotFound, RequestError, StoreError
from ...protocol import messages as m
from ...protocol.envelope import open_envelope
from ...selectors import Explanation, compile_selector
from ...selectors.explain import explain as explain_condition
from ...storage.commit.commits import Commits
from ...storage.messages.payloads import Payloads
from ...storage.read.queue_pages import QueuePages
from ...storage.records import keys
from ...storage.routing import header_match
from ...storage.routing.queue_definition import Binding
from ...storage.state.store_state import StoreState
from .context import Context
from .registry import handles

#: bindings that are explained; those that match come first
MAX_BINDINGS = 50
_PARTS_OF_A_BINDING = 20

#: the headers of the envelope, typed; None where only texts are known
Typed = Mapping[Any, Any] | None


class ExplainCalls:
    """Explains a queue, or a filter alone."""

    def __init__(self, state: StoreState, commits: Commits, payloads: Payloads, pages: QueuePages) -> None:
        self._state = state
        self._topology = state.topology
        self._commits = commits
        self._payloads = payloads
        self._pages = pages

    def _filter_of(self, msg: m.Explain) -> str:
        return msg.filter

    @handles(m.Explain, query=True, filter_of=_filter_of)
    def explain(self, call: Context, msg: m.Explain) -> None:
        """Answered at once for given headers, after reading the store for a message."""
        if not msg.queue:
            if not msg.filter:
                raise RequestError("nothing to explain: name a queue, or give a filter")
        elif msg.filter:
            raise RequestError("give a queue or a filter, not both: a queue has a filter of its own")
        if msg.message_id < 0:
            call.reply(m.Explained(msg.rid, self._report(call, msg, msg.headers, None)))
            return
        if msg.headers:
            raise RequestError("give a message id or headers, not both")
        if msg.message_id >= keys.MAX_MESSAGE_ID:
            raise RequestError(f"there is no message id {msg.message_id}", message_id=msg.message_id)
        call.run(msg.rid, self._explain_stored(call, msg))

    async def _explain_stored(self, call: Context, msg: m.Explain) -> m.Explained:
        headers = await self._metadata(msg.message_id)
        typed = await self._typed_headers(msg.message_id)
        return m.Explained(msg.rid, self._report(call, msg, headers, typed))

    async def _metadata(self, id: int) -> dict[str, str]:
        found = await self._pages.metadata_of(id)
        if found is None and id < self._state.next_id:  # a staged row may be in the journal only
            if self._commits.is_dirty:
                await self._commits.checkpoint()
            else:
                await self._commits.checkpoint_ended()
            found = await self._pages.metadata_of(id)
        if found is None:
            raise NotFound(
                f"no message {id} is stored: it was never published, only transient queues got it, or its time is over",
                message_id=id,
            )
        return dict(found.headers)

    async def _typed_headers(self, id: int) -> Typed:
        """What a headers exchange compares; the metadata has texts only."""
        try:
            await self._payloads.load([id])
        except StoreError:
            return None
        opened = open_envelope(self._payloads.find(id) or b"")
        return None if opened is None else opened[3]

    def _report(self, call: Context, msg: m.Explain, headers: dict[str, str], typed: Typed) -> dict[str, Any]:
        if not msg.queue:
            found = compile_selector(msg.filter).explain(headers)
            return {"matches": found.value is True, "filter": found.to_dict()}
        name = call.queue(msg.queue).name
        definition = self._topology.definition_of(name)
        bindings = [_binding(binding, headers, typed) for binding in definition.bindings]
        bindings.sort(key=lambda binding: binding["matches"] is not True)
        own = definition.filter
        return {
            "queue": name,
            "matches": self._is_routed(name, headers, typed),
            "mode": None if own is None else own.mode,
            "filter": None if own is None else own.selector.explain(headers).to_dict(),
            "bindings": [_explained(binding, headers) for binding in bindings[:MAX_BINDINGS]],
            "bindings_omitted": max(0, len(bindings) - MAX_BINDINGS),
        }

    def _is_routed(self, queue: str, headers: dict[str, str], typed: Typed) -> bool:
        exchange, key = headers.get("exchange", ""), headers.get("routing_key", "")
        seen = headers if typed is None else typed
        try:
            return queue in self._topology.route(exchange, key, lambda: seen, headers)
        except NotFound:
            return False


def _binding(binding: Binding, headers: dict[str, str], typed: Typed) -> dict[str, Any]:
    value: bool | None
    if binding.type == "headers" and typed is not None:
        value = headers.get("exchange") == binding.exchange and header_match.matches(binding.arguments, typed)
    else:
        value = explain_condition(binding.condition, headers, max_parts=1).value
    return {"binding": binding, "matches": value}


def _explained(found: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    binding: Binding = found["binding"]
    explanation: Explanation = explain_condition(binding.condition, headers, max_parts=_PARTS_OF_A_BINDING)
    return {
        "exchange": binding.exchange,
        "type": binding.type,
        "routing_key": binding.routing_key,
        "matches": found["matches"] is True,
        "explanation": explanation.to_dict(),
    }
