"""Programs that run as other users of this machine, which only root can start."""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path
from typing import NamedTuple

import kombu_opendata

#: what a program of another user reads: the interpreter, its packages, and this project's
_NEEDED = (Path(sys.base_prefix), Path(sys.prefix), Path(kombu_opendata.__file__).parent)


class Account(NamedTuple):
    """A user with a group of its own and further groups; names are not needed."""

    uid: int
    groups: tuple[int, ...] = ()

    def command(self, *words: str, first: str = "") -> list[str]:
        """The command as this user, in a mount namespace of its own, in which this user can read what it needs.

        An interpreter or a clone in root's home is not for others. In the namespace, a folder that is closed to others
        is open, and has nothing but the ways to what the command needs.

        Args:
            first: what root does in that namespace before, as a shell writes it.
        """
        groups = ",".join(map(str, self.groups))
        as_user = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid)]
        as_user += ["--groups", groups] if groups else ["--clear-groups"]
        steps = [*_open_ways(), *filter(None, [first]), 'exec "$@"']
        return ["unshare", "--mount", "sh", "-c", " && ".join(steps), "sh", *as_user, *words]

    def python(self, code: str, *arguments: str) -> list[str]:
        """A command that runs this code."""
        return self.command(sys.executable, "-c", code, *arguments)


def _open_ways() -> list[str]:
    """Steps after which others can enter the needed folders, and see nothing more of what keeps them from it."""
    closed: dict[Path, list[Path]] = {}
    for path in _NEEDED:
        outermost = next((each for each in reversed(path.parents) if not each.stat().st_mode & stat.S_IXOTH), None)
        if outermost is not None and not any(path.is_relative_to(other) for other in closed.get(outermost, ())):
            closed.setdefault(outermost, []).append(path)
    steps = []
    for folder, paths in closed.items():
        quoted = shlex.quote(str(folder))
        steps.append(f'kept=$(mktemp -d) && mount --bind {quoted} "$kept" && mount -t tmpfs -o mode=755 none {quoted}')
        for path in paths:
            place, way = shlex.quote(str(path)), shlex.quote(str(path.relative_to(folder)))
            steps.append(f'(umask 022 && mkdir -p {place}) && mount --bind "$kept"/{way} {place}')
        steps.append('umount "$kept" && rmdir "$kept"')
    return steps
