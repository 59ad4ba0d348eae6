"""The base of all targets, and the limits of an input: a stall of the loop, and growth of the memory."""

from __future__ import annotations

import base64
import resource
import time
from pathlib import Path

MAX_STALL_SECONDS = 0.05
MAX_GROWTH_BYTES = 50 << 20
CORPUS = Path(__file__).parent / "corpus"


class Target:
    """Code that reads bytes of a stranger.

    Attributes:
        tokens: texts that inputs may have, for the mutations.
        most_bytes: the length of the longest input.
        renewed_after: the number of inputs after which :meth:`close` and :meth:`open` forget what these left behind.
    """

    name: str
    tokens: tuple[str, ...] = ()
    most_bytes = 4096
    renewed_after = 0

    def open(self) -> None:
        """Make what the inputs need."""

    def close(self) -> None:
        """End what :meth:`open` made."""

    def seeds(self) -> list[bytes]:
        """Inputs to begin with."""
        raise NotImplementedError

    def run(self, data: bytes) -> None:
        """Read an input; raise no declared error."""
        raise NotImplementedError

    def mutate(self, data: bytes, random: int) -> bytes | None:
        """Change an input within its structure; None for a change of its bytes."""
        return None


class Cost:
    """CPU time and memory of an input; ``with Cost() as cost: …``."""

    def __enter__(self) -> Cost:
        self._memory = _peak_bytes()
        self._start = time.thread_time()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.seconds = time.thread_time() - self._start
        self.bytes = _peak_bytes() - self._memory


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def resident_bytes() -> int:
    """Return the memory that this process uses now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def load_inputs(path: Path) -> list[bytes]:
    """Return the inputs of a file: a line of base64 for each."""
    return [base64.b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def save_inputs(path: Path, inputs: list[bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(map(line_of, inputs)))


def line_of(data: bytes) -> str:
    """Return the line of an input."""
    return f"{base64.b64encode(data).decode()}\n"


def corpus(name: str) -> Path:
    """Return the file of the inputs that earlier runs kept."""
    return CORPUS / f"{name}.txt"
