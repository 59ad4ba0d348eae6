"""Celery's result backend: ``result_backend = "opendata:///abs/folder"``, the URL that ``broker_url`` has.

Results live in the broker's store, beside the queues. The broker pushes them to who waits, counts a chord's parts
(each once, however often a task is delivered) and tells the worker that completed one to send the callback.

``result_backend = "opendata"`` takes the app's broker URL. ``result_backend_transport_options`` takes the options of
``broker_transport_options`` and ``connect_timeout`` (seconds, default 5), ``ssl`` (as ``broker_use_ssl``) and
``global_keyprefix``; where the URL is the broker's, the broker's options are the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, ImproperlyConfigured
from celery.result import GroupResult, ResultSet, allow_join_result, result_from_tuple
from celery.utils.functional import regen
from celery.utils.log import get_logger
from kombu.exceptions import EncodeError

from .. import url as urls
from ..client.calls.result_client import Changes, ResultClient
from ..client.connection_options import SECONDS, Options, check_broker_options
from ..client.published_task import PublishedTask, published_task
from ..errors import ConnectionLost, InvalidURL, MessageTooLarge, RequestError, RetryLater
from ..protocol import revocation
from ..protocol.messages import OpenChord, StoreResult

logger = get_logger(__name__)

_INTERIM, _READY, _FINAL = range(3)
#: of a traceback that is stored with a result that was too large
_TRACEBACK_CHARACTERS = 10_000

_regen = type(regen(iter(())))


class ResultTooLarge(MessageTooLarge, EncodeError):
    """The result is over the broker's limit. To Celery it is one that can't be encoded: the task's state is FAILURE."""


class ChordPart:
    """The part that a task of a chord's header plays; ``is_last`` when its chord is complete."""

    def __init__(self, chord: bytes, index: int, member: bytes) -> None:
        self.chord = chord
        self.index = index
        self.member = member
        self.is_last = False


class ResultConsumer(BaseResultConsumer):
    """Takes in what the broker pushes."""

    def start(self, initial_task_id: str, **_kwargs: Any) -> None:
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        self.backend.client.watch(self.backend.get_key_for_task(task_id))

    def cancel_for(self, task_id: str) -> None:
        self.backend.client.unwatch(self.backend.get_key_for_task(task_id))

    def drain_events(self, timeout: float | None = None) -> None:
        self.backend.client.drain(timeout, self._take)

    def on_wait_for_pending(self, result: Any, timeout: float | None = None, **_kwargs: Any) -> None:
        """Who does not want to wait gets what is there already."""
        if timeout is None or timeout > 0:
            return
        nodes = getattr(result, "results", [result])
        wanted = [self.backend.get_key_for_task(node.id) for node in nodes if not isinstance(node, ResultSet)]
        self._take([(b"", value) for value in self.backend.mget(wanted) if value is not None])

    def _take(self, changes: Changes) -> None:
        failure: Exception | None = None
        for _name, value in changes:
            try:
                self.on_state_change(self.backend.decode_result(value), None)
            except Exception as exc:  # the others' results are still to be handed out
                failure = failure or exc
        if failure is not None:
            raise failure


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
        self.url = url or _broker_url(conf)
        failure_expires = conf.get("result_failure_expires")
        self._ttl_ms = _milliseconds(self.expires, "result_expires")
        self._failure_ttl_ms = (
            self._ttl_ms
            if failure_expires is None
            else _milliseconds(self.prepare_expires(failure_expires, type=float), "result_failure_expires")
        )
        self._chord_ttl_ms = _milliseconds(getattr(self, "chord_expires", self.expires), "result_chord_expires")
        addresses = _addresses(self.url)
        self._places = frozenset(address.place for address in addresses)
        self._chord_prefix = _bytes(self.group_keyprefix).decode()
        self.client = ResultClient(addresses, _options(conf, self.url))
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def as_uri(self, include_password: bool = False) -> str:
        return ";".join(address.as_uri(include_password) for address in _addresses(self.url))

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, dict(kwargs or {}, expires=self.expires, url=self.url))

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        return isinstance(exc, (ConnectionLost, RetryLater))

    # ------------------------------------------------------------ keys and values
    def get(self, key: bytes) -> bytes | None:
        return self.client.get([key])[0]

    def mget(self, keys: Iterable[bytes]) -> list[bytes | None]:
        return self.client.get(list(keys))

    def set(self, key: bytes, value: str | bytes) -> None:
        self._send(StoreResult(0, key, _INTERIM, _bytes(value), self._ttl_ms, False))

    def delete(self, key: bytes) -> None:
        self.client.forget([key])

    def forget(self, task_id: str) -> None:
        super().forget(task_id)
        self.result_consumer.cancel_for(task_id)

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """A task is about to be published. Its message says where its result goes, in case that it expires."""
        key = self.get_key_for_task(task_id)
        self.client.note_sent(key)
        published_task.set(PublishedTask(task_id, self._places, (key.decode(), self._chord_prefix, self._ttl_ms)))

    def decode(self, payload: Any) -> Any:
        if isinstance(payload, bytes) and payload.startswith(revocation.MARK):
            return revocation.decode(payload)
        return super().decode(payload)

    # ------------------------------------------------------------ storing results
    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        """The result of a chord's task and its part go to the broker in one message."""
        part = self._part(request) if request and request.chord and request.id == task_id else None
        if part is None or not store_result or request.ignore_result:
            super().mark_as_done(task_id, result, request, store_result, state)
            return
        self.store_result(task_id, result, state, request=request, part=part)
        if part.is_last:
            self._send_callback(request, part.chord)

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
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = str(task_id)
        kind = _FINAL if state == states.SUCCESS else _READY if state in states.READY_STATES else _INTERIM
        ttl_ms = self._failure_ttl_ms if state == states.FAILURE else self._ttl_ms
        message = StoreResult(0, self.get_key_for_task(task_id), kind, b"", ttl_ms, _may_have_run(request, task_id))
        if part is not None:
            self._add_part(message, part)
        is_last = self._send_meta(message, meta)
        if part is not None:
            part.is_last = is_last
        return result

    def _send_meta(self, message: StoreResult, meta: dict[str, Any]) -> bool:
        """Encode and store; an error that is too large itself is stored as one that says so."""
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
        """A chord begins. A header with groups in it is remembered, so that its results come back in its shape."""
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
        self._open_chord(chord_id, added=1)

    def _open_chord(self, group_id: str, **fields: Any) -> None:
        message = OpenChord(0, self.get_key_for_group(group_id), self._chord_ttl_ms, **fields)
        self._ensure_retryable(self.client.open_chord, message)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_kwargs: Any) -> None:
        """A task of a chord's header ended whose result is not stored, or was stored before."""
        part = self._part(request)
        if part is None:
            return
        message = StoreResult(0, b"", _READY, b"", 0, False)
        self._add_part(message, part)
        meta = {"task_id": request.id, "status": state, "result": self.encode_result(result, state)}
        if self._ensure_retryable(self._send_meta, message, meta):
            self._send_callback(request, part.chord)

    def _part(self, request: Any) -> ChordPart | None:
        if not request.group or not request.id:
            return None
        index = request.group_index
        return ChordPart(self.get_key_for_group(request.group), -1 if index is None else index, request.id.encode())

    def _add_part(self, message: StoreResult, part: ChordPart) -> None:
        message.chord, message.index, message.member = part.chord, part.index, part.member
        message.chord_ttl_ms = self._chord_ttl_ms

    def _send_callback(self, request: Any, chord: bytes) -> None:
        """All parts are there, and it is this process that sends the callback."""
        callback = maybe_signature(request.chord, app=self.app)
        try:
            values = self._chord_values(*self.client.chord_parts(chord))
            _retrying(self.app, callback.delay, values)
        except (ConnectionLost, RetryLater):
            raise  # the chord stays, for whoever runs the task when it is delivered again
        except Exception as exc:
            logger.exception("Chord %r raised: %r", request.group, exc)
            error = exc
            if not isinstance(exc, ChordError):
                error = ChordError(f"Callback error: {exc!r}")
                error.__cause__ = exc
            self.chord_error_from_stack(callback, error)
        self.client.close_chord(chord)

    def _chord_values(self, header: bytes, parts: list[tuple[bytes, bytes]]) -> list[Any]:
        """What the header's tasks returned, in order.

        Raises:
            ChordError: one of them failed.
        """
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


# ---------------------------------------------------------------------- settings
def _broker_url(conf: Any) -> str:
    given = conf.broker_write_url or conf.broker_url
    url = given if isinstance(given, str) else ";".join(given or ())
    if not url.startswith(("opendata://", "opendatas://", "opendata+memory://")):
        raise ImproperlyConfigured(
            "result_backend 'opendata' takes the broker's URL, and that is not an opendata:// one: "
            "write result_backend = 'opendata:///absolute/folder'"
        )
    return url


def _addresses(url: str) -> list[urls.Address]:
    try:
        return [urls.parse(part) for part in url.split(";") if part]
    except InvalidURL as exc:
        raise ImproperlyConfigured(f"result_backend: {exc}") from exc


def _bytes(encoded: str | bytes) -> bytes:
    return encoded.encode() if isinstance(encoded, str) else encoded


def _milliseconds(seconds: float | None, setting: str) -> int:
    """A time to live; None and 0 are for ever."""
    if seconds is not None and seconds < 0:
        raise ImproperlyConfigured(f"{setting} is {seconds:g} seconds; 0 or None keeps results for ever")
    return int(1000 * seconds) if seconds else 0


def _options(conf: Any, url: str) -> Options:
    given = dict(conf.get("result_backend_transport_options") or {})
    if url == conf.broker_url:
        given = {**(conf.broker_transport_options or {}), "ssl": conf.broker_use_ssl, **given}
    try:
        numbers: dict[str, Any] = {
            name: float(given[name]) for name in (*SECONDS, "connect_timeout") if given.get(name) is not None
        }
    except (TypeError, ValueError) as exc:
        raise ImproperlyConfigured(f"result_backend_transport_options: a number of seconds is wanted: {exc}") from exc
    try:
        broker_options = check_broker_options(given.get("broker_options"))
    except RequestError as exc:
        raise ImproperlyConfigured(f"result_backend_transport_options: {exc}") from exc
    name = str(given.get("consumer_name") or "")
    return Options(name=name, tls=given.get("ssl") or None, broker_options=broker_options, **numbers)


def _may_have_run(request: Any, task_id: str) -> bool:
    """Whether there may be a result of this task that the broker does not have at hand."""
    if request is None or request.id != task_id:
        return True
    return (request.delivery_info or {}).get("redelivered") is not False


def _retrying(app: Any, publish: Any, *args: Any) -> None:
    """Publish from within a task, waiting between retries where Celery knows how to."""
    retry = getattr(app.amqp, "_retry_publish", None)
    if retry is None:
        publish(*args)
    else:
        retry(publish, *args)
