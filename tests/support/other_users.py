"""Programs that run as other users of this machine, which only root can start."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import NamedTuple


class Account(NamedTuple):
    """A user with a group of its own and further groups; names are not needed."""

    uid: int
    groups: tuple[int, ...] = ()

    def command(self, *words: str, first: str = "") -> list[str]:
        """The command as this user. What keeps others from this interpreter is opened for it alone.

        An interpreter in root's home is not for others. So the command has a mount namespace of its own, in which the
        folder that is closed has nothing but the way to the interpreter, and is open.

        Args:
            first: what root does in that namespace before, as a shell writes it.
        """
        groups = ",".join(map(str, self.groups))
        as_user = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid)]
        as_user += ["--groups", groups] if groups else ["--clear-groups"]
        steps = [*_open_way(Path(sys.base_prefix)), *filter(None, [first]), 'exec "$@"']
        return ["unshare", "--mount", "sh", "-c", " && ".join(steps), "sh", *as_user, *words]

    def python(self, code: str, *arguments: str) -> list[str]:
        """A command that runs this code."""
        return self.command(sys.executable, "-c", code, *arguments)


def _open_way(path: Path) -> list[str]:
    """Steps after which others can enter a path, and see nothing more of the folder that keeps them from it."""
    for closed in (*reversed(path.parents), path):
        if not closed.stat().st_mode & stat.S_IXOTH:
            break
    else:
        return []
    way = path.relative_to(closed).parts[0]
    return [
        f'kept=$(mktemp -d) && mount --bind {closed} "$kept" && mount -t tmpfs -o mode=755 none {closed}',
        f'mkdir {closed}/{way} && mount --bind "$kept"/{way} {closed}/{way} && umount "$kept" && rmdir "$kept"',
    ]
