"""Result backend for Celery: ``result_backend = "opendata:///abs/folder"``, the same URL as ``broker_url``.

Results are stored in the broker's store, next to the queues. The broker pushes them to waiting clients. It counts a
chord's parts, each once even if its task is delivered again. Its reply to the last part makes that worker send the
chord's callback.

``result_backend = "opendata"`` uses the app's broker URL. ``result_backend_transport_options`` accepts the options of
``broker_transport_options`` that concern a connection, ``connect_timeout`` (seconds, default 5), ``ssl`` (as
``broker_use_ssl``) and ``global_keyprefix``. If the URL is the broker's, the broker's options are the defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, Retry, SoftTimeLimitExceeded
from celery.result import GroupResult, ResultSet, allow_join_result, result_from_tuple
from celery.utils.functional import regen
from kombu.exceptions import EncodeError

from ..client.published_task import PublishedTask, published_task
from ..client.result_client import Changes, ResultClient
from ..errors import ConnectionLost, CorruptRecord, MessageTooLarge, OpenDataError, RetryLater
from ..protocol import revocation
from ..protocol.messages import OpenChord, StoreResult
from . import backend_settings as settings
from .worker_shutdown import PersistentCalls, ResultNotStored, is_outage, worker_shutdown

log = logging.getLogger(__name__)

_INTERIM, _READY, _FINAL = range(3)
#: characters that are stored of the traceback of a task whose result was too large
_TRACEBACK_CHARACTERS = 10_000

_regen = type(regen(iter(())))


class ResultTooLarge(MessageTooLarge, EncodeError):
    """The result exceeds the broker's limit. Celery treats it as a result that can't be encoded: the task fails."""


class ChordPart:
    """Result of one task as a part of a chord; ``is_last`` is True if it completed the chord."""

    def __init__(self, chord: bytes, index: int, member: bytes) -> None:
        self.chord = chord
        self.index = index
        self.member = member
        self.is_last = False


class ResultConsumer(BaseResultConsumer):
    """Consumer that passes on results as the broker pushes them."""

    def start(self, initial_task_id: str, **_kwargs: Any) -> None:
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        self.backend.client.watch(self.backend.get_key_for_task(task_id))

    def cancel_for(self, task_id: str) -> None:
        self.backend.client.unwatch(self.backend.get_key_for_task(task_id))

    def drain_events(self, timeout: float | None = None) -> None:
        self.backend.client.drain(timeout, self._take)

    def on_wait_for_pending(self, result: Any, timeout: float | None = None, **_kwargs: Any) -> None:
        """Process the results that exist already if the timeout is 0."""
        if timeout is None or timeout > 0:
            return
        nodes = getattr(result, "results", [result])
        keys = [self.backend.get_key_for_task(node.id) for node in nodes if not isinstance(node, ResultSet)]
        self._take([(b"", value) for value in self.backend.mget(keys) if value is not None])

    def _take(self, changes: Changes) -> None:
        failure: Exception | None = None
        for name, value in changes:
            try:
                self.on_state_change(self._meta(name, value), None)
            except Exception as exc:  # the other results must still be passed on
                failure = failure or exc
        if failure is not None:
            raise failure

    def _meta(self, name: bytes, value: bytes | CorruptRecord) -> dict[str, Any]:
        """Return the result as Celery knows it: a damaged one as a failure, which its `get` raises."""
        if isinstance(value, bytes):
            meta: dict[str, Any] = self.backend.decode_result(value)
            return meta
        task_id = name.removeprefix(self.backend.task_keyprefix).decode()
        return {"task_id": task_id, "status": states.FAILURE, "result": value, "traceback": None, "children": []}


class OpenDataBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """Result backend for ``opendata://`` URLs."""

    ResultConsumer = ResultConsumer

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app=app, url=url, expires_type=float, **kwargs)
        conf = app.conf
        self.url = url or settings.broker_url(conf)
        failure_expires = conf.get("result_failure_expires")
        self._ttl_ms = settings.milliseconds(self.expires, "result_expires")
        self._failure_ttl_ms = (
            self._ttl_ms
            if failure_expires is None
            else settings.milliseconds(self.prepare_expires(failure_expires, type=float), "result_failure_expires")
        )
        self._chord_ttl_ms = settings.milliseconds(getattr(self, "chord_expires", self.expires), "result_chord_expires")
        addresses = settings.addresses(self.url)
        self._places = frozenset(address.place for address in addresses)
        self._chord_prefix = _bytes(self.group_keyprefix).decode()
        options = settings.options(conf, self.url)
        self.client = ResultClient(addresses, options)
        worker_shutdown.watch()
        has_alternatives = len(addresses) > 1 or ";" in settings.broker_urls(conf)
        self._calls = PersistentCalls(worker_shutdown, options.reconnect_timeout, has_alternatives=has_alternatives)
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        return ";".join(address.as_uri(include_password) for address in settings.addresses(self.url))

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, dict(kwargs or {}, expires=self.expires, url=self.url))

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        return isinstance(exc, (ConnectionLost, RetryLater))

    # ------------------------------------------------------------ keys and values
    def get(self, key: bytes) -> bytes | None:
        return self.mget([key])[0]

    def mget(self, keys: Iterable[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._calls.do(self.client.get, list(keys))
        return values

    def set(self, key: bytes, value: str | bytes) -> None:
        self._calls.do(self._send, StoreResult(0, key, _INTERIM, _bytes(value), self._ttl_ms, False))

    def delete(self, key: bytes) -> None:
        self._calls.do(self.client.forget, [key])

    def forget(self, task_id: str) -> None:
        super().forget(task_id)
        self.result_consumer.cancel_for(task_id)

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """Record the task that is about to be published.

        If the task expires, the broker stores the result REVOKED, so the message contains the key of the result. The
        method returns no options, because ``Signature.election`` would add them to those of the task.
        """
        key = self.get_key_for_task(task_id)
        self.client.note_sent(key)
        published_task.set(PublishedTask(task_id, self._places, (key.decode(), self._chord_prefix, self._ttl_ms)))
        return {}

    def decode(self, payload: Any) -> Any:
        if isinstance(payload, bytes) and payload.startswith(revocation.MARK):
            return revocation.decode(payload)
        return super().decode(payload)

    # ------------------------------------------------------------ storing results
    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        """Store the result of a task and its part of a chord with one message."""
        part = self._part(request) if request and request.chord and request.id == task_id else None
        if part is None or not store_result or request.ignore_result:
            super().mark_as_done(task_id, result, request, store_result, state)
            return
        self.store_result(task_id, result, state, request=request, part=part)
        if part.is_last:
            self._send_callback(request, part.chord)

    def mark_as_failure(self, task_id: str, exc: Exception, *args: Any, **kwargs: Any) -> None:
        """Store a failure, also for the subsequent tasks of a chain; Celery omits those that are in groups.

        Raises:
            ResultNotStored: the task succeeded but its result can't be stored, which Celery 5.6 reports as a failure.
        """
        if isinstance(exc, ResultNotStored):
            raise exc
        request: Any = kwargs.get("request")
        chain = getattr(request, "chain", None)
        if not isinstance(chain, list):
            super().mark_as_failure(task_id, exc, *args, **kwargs)
            return
        request.chain = [task for step in chain for task in _results_of(step)]
        try:
            super().mark_as_failure(task_id, exc, *args, **kwargs)
        finally:
            request.chain = chain

    def mark_as_retry(self, task_id: str, exc: Any, traceback: Any = None, request: Any = None, **kwargs: Any) -> Any:
        """Store that a task is retried.

        If the exception is a Retry, the worker cancels the task, possibly in a signal handler. The method does not wait
        for the broker then, because the state changes again when the task's message is delivered.
        """
        if not isinstance(exc, Retry):
            return super().mark_as_retry(task_id, exc, traceback, request, **kwargs)
        message, meta = self._message(task_id, self.encode_result(exc, states.RETRY), states.RETRY, traceback, request)
        try:
            self._calls.do_once(self._send_meta, message, meta)
        except (ConnectionLost, RetryLater) as error:
            log.warning("the broker does not know that task %s was cancelled: %s", task_id, error)
        return None

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        part: ChordPart | None = None,
        **_kwargs: Any,
    ) -> Any:
        message, meta = self._message(task_id, result, state, traceback, request)
        if part is not None:
            self._add_part(message, part)
        try:
            is_last = self._calls.do_for(request, self._send_meta, message, meta)
        except SoftTimeLimitExceeded:
            if state not in states.READY_STATES:
                raise
            is_last = self._calls.do_for(request, self._send_meta, message, meta)  # the task function has ended
        except OpenDataError as exc:
            self._tolerate(exc, task_id, state)
            is_last = False
        if part is not None:
            part.is_last = is_last
        return result

    def _tolerate(self, error: OpenDataError, task_id: str, state: str) -> None:
        """In a worker, log that the broker refuses a failure permanently; raise any other error.

        Celery stores a failure at the end of the task. In a pool without processes, an exception at that point would
        leave the message of the task in flight, and it would end a solo worker.
        """
        is_permanent = not isinstance(error, (ConnectionLost, RetryLater))
        if not is_permanent or state not in states.EXCEPTION_STATES or not worker_shutdown.is_worker:
            raise error
        log.error("The state %s of task %s can't be stored: %s", state, task_id, error)

    def _message(
        self, task_id: str, result: Any, state: str, traceback: str | None, request: Any
    ) -> tuple[StoreResult, dict[str, Any]]:
        """Return the message that stores a result, without its value, and the value before its encoding."""
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = str(task_id)
        kind = _FINAL if state == states.SUCCESS else _READY if state in states.READY_STATES else _INTERIM
        ttl_ms = self._failure_ttl_ms if state == states.FAILURE else self._ttl_ms
        key = self.get_key_for_task(task_id)
        return StoreResult(0, key, kind, b"", ttl_ms, _may_have_run(request, task_id)), meta

    def _send_meta(self, message: StoreResult, meta: dict[str, Any]) -> bool:
        """Encode and store a result; in place of an error that is too large, store an error that reports its size."""
        message.value = _bytes(self.encode(meta))
        try:
            return self._send(message)
        except ResultTooLarge as exc:
            if meta["status"] not in states.EXCEPTION_STATES:
                raise
            small: dict[str, Any] = {
                name: meta[name] for name in ("status", "task_id", "children", "date_done") if name in meta
            }
            traceback = (meta.get("traceback") or "")[-_TRACEBACK_CHARACTERS:]
            small.update(result=self.prepare_exception(exc), traceback=traceback or None)
            message.value = _bytes(self.encode(small))
            return self._send(message)

    def _send(self, message: StoreResult) -> bool:
        try:
            return self.client.store(message).complete
        except MessageTooLarge as exc:
            raise ResultTooLarge(exc.text, **exc.values) from exc

    # ------------------------------------------------------------ chords
    def apply_chord(self, header_result_args: Sequence[Any], body: Any, **_kwargs: Any) -> None:
        """Open a chord. A header with groups is stored, because the list of results is nested in the same way."""
        self.ensure_chords_allowed()
        group_id, results = header_result_args[0], header_result_args[1]
        header = b""
        if not isinstance(results, _regen):
            results = list(results)
            if any(isinstance(result, GroupResult) for result in results):
                whole = self.app.GroupResult(group_id, results, *header_result_args[2:])
                header = _bytes(self.encode({"result": whole.as_tuple()}))
        self._open_chord(group_id, header=header, again=True, body=str(body.id or "").encode())

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        self._open_chord(group_id, size=chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        self._open_chord(chord_id, added=1, member=str(result.id).encode())

    def _open_chord(self, group_id: str, **fields: Any) -> None:
        message = OpenChord(0, self.get_key_for_group(group_id), self._chord_ttl_ms, **fields)
        self._calls.do(self.client.open_chord, message)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_kwargs: Any) -> None:
        """Add the result of a header task to its chord; the result itself was stored before, or is not stored."""
        part = self._part(request)
        if part is None:
            return
        message = StoreResult(0, b"", _READY, b"", 0, False)
        self._add_part(message, part)
        meta = {"task_id": request.id, "status": state, "result": self.encode_result(result, state)}
        try:
            is_last = self._calls.do_for(request, self._send_meta, message, meta)
        except OpenDataError as exc:
            self._tolerate(exc, request.id, state)
            return
        if is_last:
            self._send_callback(request, part.chord)

    def _part(self, request: Any) -> ChordPart | None:
        if not request.group or not request.id:
            return None
        index = request.group_index
        return ChordPart(self.get_key_for_group(request.group), -1 if index is None else index, request.id.encode())

    def _add_part(self, message: StoreResult, part: ChordPart) -> None:
        message.chord = part.chord
        message.index = part.index
        message.member = part.member
        message.chord_ttl_ms = self._chord_ttl_ms

    def _send_callback(self, request: Any, chord: bytes) -> None:
        """Send a chord's callback: all parts are complete, and the broker selected this process.

        If the worker exits before that, the next delivery of the task sends the callback.
        """
        callback = maybe_signature(request.chord, app=self.app)
        try:
            self._calls.do_for(request, self._publish_callback, callback, chord)
        except ResultNotStored:
            raise
        except Exception as exc:
            if isinstance(exc, (ConnectionLost, RetryLater)) and is_outage(exc):
                raise
            self._fail_chord(request, callback, exc)
        self._calls.do_for(request, self.client.close_chord, chord)

    def _publish_callback(self, callback: Any, chord: bytes) -> None:
        values = self._chord_values(*self.client.chord_parts(chord))
        _retrying(self.app, callback.delay, values)

    def _fail_chord(self, request: Any, callback: Any, exc: Exception) -> None:
        log.error("Chord %r raised: %r", request.group, exc, exc_info=exc)
        error = exc
        if not isinstance(exc, ChordError):
            error = ChordError(f"Callback error: {exc!r}")
            error.__cause__ = exc
        self.chord_error_from_stack(callback, error)

    def _chord_values(self, header: bytes, parts: list[tuple[bytes, bytes]]) -> list[Any]:
        """Return the results of the header's tasks, in order; raise ChordError if one of them failed."""
        values = [(member.decode(), self._part_value(member.decode(), value)) for member, value in parts]
        if not header:
            return [value for _member, value in values]
        shape = result_from_tuple(self.decode(header)["result"], self.app)
        by_id = dict(values)
        with allow_join_result():
            return [self._shaped(result, by_id) for result in shape.results]

    def _shaped(self, result: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(result, ResultSet):
            return [self._shaped(member, values) for member in result.results]
        if result.id in values:
            return values[result.id]
        return result.get(timeout=self.app.conf.result_chord_join_timeout)

    def _part_value(self, task_id: str, value: bytes) -> Any:
        meta = self.decode_result(value)
        result = meta["result"]
        if meta["status"] in states.PROPAGATE_STATES:
            error = ChordError(f"Dependency {task_id} raised {result!r}")
            error.__cause__ = result if isinstance(result, BaseException) else None
            raise error
        return result


def _bytes(encoded: str | bytes) -> bytes:
    return encoded.encode() if isinstance(encoded, str) else encoded


def _results_of(step: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the signatures of a chain's step that have results: the step, or the tasks of a group or a chain."""
    members = (step.get("kwargs") or {}).get("tasks")
    if not members or step.get("subtask_type") not in ("group", "chain"):
        return [step]
    return [task for member in members for task in _results_of(member)]


def _may_have_run(request: Any, task_id: str) -> bool:
    """Return True if the broker may have a result of this task that is not in its memory.

    The task may have run before, or its id may be used again; an id that Celery generates is random. A request for an
    unknown task has few attributes.
    """
    if getattr(request, "id", None) != task_id or len(task_id) != 36 or task_id[14] != "4":
        return True
    return (getattr(request, "delivery_info", None) or {}).get("redelivered") is not False


def _retrying(app: Any, publish: Any, *args: Any) -> None:
    """Publish from within a task, with Celery's pauses between retries if this version has them."""
    retry = getattr(app.amqp, "_retry_publish", None)
    if retry is None:
        publish(*args)
    else:
        retry(publish, *args)
