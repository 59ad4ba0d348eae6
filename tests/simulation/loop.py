"""An event loop in virtual time for several simulated processes, which can be stopped and killed.

Time passes only when nothing is left to do: then the loop jumps to its next timer. What the code of a process schedules
belongs to that process, by a context variable: the callbacks of a stopped process wait, those of a killed one never
run, and no cleanup of it runs either. Blocking code of a client runs in a greenlet, a *fiber*, which switches to the
loop instead of blocking.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from greenlet import greenlet

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)
_fiber: contextvars.ContextVar[Fiber] = contextvars.ContextVar("fiber")


#: how often a coroutine may await at its end
_ENDS = 20
#: time for a thread to report what nothing else waits for
_THREADS_SECONDS = 30.0
#: least time until a timer, above the resolution of the loop's clock
_SHORTEST_SECONDS = 1e-6


class Killed(BaseException):
    """The process of this code was killed."""


class Process:
    """A process of the simulation.

    Attributes:
        context: in which all its code runs.
        is_alive, is_stopped: changed by :meth:`kill`, :meth:`stop` and :meth:`proceed`.
    """

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self._waiting: list[_Entry] = []
        self.tasks: list[asyncio.Task[Any]] = []  # so that no garbage collection ends the tasks of a killed process

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work, context=self.context)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.errors.append(error)

    def kill(self) -> None:
        self.is_alive = False
        self._waiting.clear()

    def stop(self) -> None:
        self.is_stopped = True

    def proceed(self) -> None:
        self.is_stopped = False
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            entry.again()

    def wait(self, entry: _Entry) -> None:
        self._waiting.append(entry)

    def bury(self) -> None:
        """Close the coroutines of a killed process; what they do at their end has no effect."""
        while self.tasks:
            task = self.tasks.pop()
            for _ in range(_ENDS):
                if task.done():
                    break
                try:
                    task.get_coro().close()
                except RuntimeError:  # it awaits again at its end
                    continue
                except Exception:  # what it does at its end fails, as its disk does
                    continue
                break


class _Entry:
    """A callback of a process."""

    __slots__ = ("arguments", "callback", "context", "handle", "process")

    def __init__(
        self, process: Process, callback: Callable[..., Any], arguments: tuple[Any, ...], context: Any
    ) -> None:
        self.process, self.callback, self.arguments, self.context = process, callback, arguments, context
        self.handle: asyncio.Handle

    def __call__(self) -> None:
        if self.process.is_stopped:
            self.process.wait(self)
        elif self.process.is_alive:
            self.callback(*self.arguments)

    def again(self) -> None:
        if not self.handle.cancelled():
            asyncio.SelectorEventLoop.call_soon(self.process.loop, self, context=self.context)


class _Selector(selectors.BaseSelector):
    """A selector without events, whose waits let the virtual time pass.

    With ``real_seconds``, it first waits so long for what threads report.
    """

    def __init__(self, real_seconds: float) -> None:
        self.now = 1000.0
        self._real_seconds = real_seconds
        self._real = selectors.DefaultSelector()
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, number, events, data)
        self._real.register(fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self._real.unregister(fileobj)
        return self._keys.pop(fileobj)

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[Any]:
        if self._real_seconds and timeout != 0:
            events = self._real.select(self._real_seconds if timeout is not None else _THREADS_SECONDS)
            if events:
                return events
        if timeout is None:
            raise RuntimeError("the simulation has nothing left to do")
        self.now += max(timeout, 0.0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop; ``random`` chooses the delay of work in threads. ``real_seconds``: see :class:`_Selector`.

    Attributes:
        connect: connects a protocol to the address of a simulated broker.
    """

    def __init__(self, random_numbers: random.Random, real_seconds: float = 0.0) -> None:
        self._simulated = _Selector(real_seconds)
        super().__init__(self._simulated)
        self._random, self._has_threads = random_numbers, real_seconds > 0
        self.hub = greenlet.getcurrent()
        self.errors: list[BaseException] = []
        self.root = contextvars.Context()  # of what no process owns
        self.connect: Callable[[Callable[[], asyncio.Protocol], str], Any]
        self.set_task_factory(_new_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._note_error)

    def _note_error(self, _loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.errors.append(error)

    def time(self) -> float:
        return self._simulated.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        process = context.get(_process) if context is not None else _process.get()
        if process is None:
            return super().call_soon(callback, *args, context=context)
        context = contextvars.copy_context() if context is None else context
        entry = _Entry(process, callback, args, context)
        entry.handle = handle = super().call_soon(entry, context=context)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if when > (now := self.time()):  # asyncio would run it before that time, which then never came
            when = max(when, now + _SHORTEST_SECONDS)
        process = context.get(_process) if context is not None else _process.get()
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        context = contextvars.copy_context() if context is None else context
        entry = _Entry(process, callback, args, context)
        entry.handle = handle = super().call_at(when, entry, context=context)
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run the function after a delay, in the loop's thread; in another one if the loop waits for threads."""
        if self._has_threads:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        self.call_later(self._random.uniform(0.0, 0.003), run)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_more: Any) -> Any:
        return await self.connect(protocol_factory, f"{host}:{port}")


def _new_task(loop: SimulatedLoop, work: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, **more)
    context = more.get("context")
    process = context.get(_process) if context is not None else _process.get()
    if process is not None:
        process.tasks.append(task)
        if len(process.tasks) > 256:
            process.tasks = [each for each in process.tasks if not each.done()]
    return task


class Fiber:
    """Blocking code of a process, in a greenlet."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process = process
        self._work = work
        self._greenlet = greenlet(self._run, process.loop.hub)
        self._generation = 0
        self.is_done = False
        process.loop.call_soon(self._switch, 0, context=process.context)

    def _run(self) -> None:
        _process.set(self.process)
        _fiber.set(self)
        try:
            self._work()
        except Killed:
            pass
        except BaseException as exc:
            self.process.loop.errors.append(exc)
        finally:
            self.is_done = True

    def _switch(self, generation: int) -> None:
        if generation == self._generation and not self._greenlet.dead:
            self._greenlet.switch()

    def block(self, seconds: float | None) -> None:
        """Wait until :meth:`wake`, or for this time."""
        if not self.process.is_alive:
            raise Killed
        self._generation += 1
        loop = self.process.loop
        timer = None
        if seconds is not None:
            timer = loop.call_later(max(seconds, 0.0), self._switch, self._generation, context=self.process.context)
        loop.hub.switch()
        if timer is not None:
            timer.cancel()
        if not self.process.is_alive:
            raise Killed

    def wake(self) -> None:
        self.process.loop.call_soon(self._switch, self._generation, context=self.process.context)

    def end(self) -> None:
        """Unwind the greenlet of a killed process."""
        if not self._greenlet.dead and self._generation:
            self._greenlet.throw(Killed)


def current_fiber() -> Fiber:
    """Return the fiber whose code is running."""
    return _fiber.get()


def current_process() -> Process:
    """Return the process whose code is running."""
    process = _process.get()
    assert process is not None
    return process
