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

    def command(self, *words: str) -> list[str]:
        """The command as this user. What keeps others from this interpreter is opened for it alone.

        An interpreter in root's home is not for others. So the command has a mount namespace of its own, in which the
        folder that is closed has nothing but the way to the interpreter, and is open.
        """
        groups = ",".join(map(str, self.groups))
        as_user = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid)]
        as_user += ["--groups", groups] if groups else ["--clear-groups"]
        closed = _closed_folder(Path(sys.base_prefix))
        if closed is None:
            return [*as_user, *words]
        way = Path(sys.base_prefix).relative_to(closed).parts[0]
        script = (
            f'kept=$(mktemp -d) && mount --bind {closed} "$kept" && mount -t tmpfs -o mode=755 none {closed} '
            f'&& mkdir {closed}/{way} && mount --bind "$kept"/{way} {closed}/{way} '
            f'&& umount "$kept" && rmdir "$kept" && exec "$@"'
        )
        return ["unshare", "--mount", "sh", "-c", script, "sh", *as_user, *words]

    def python(self, code: str, *arguments: str) -> list[str]:
        """A command that runs this code."""
        return self.command(sys.executable, "-c", code, *arguments)


def _closed_folder(path: Path) -> Path | None:
    """The first folder on the way to the path that other users may not enter."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None
