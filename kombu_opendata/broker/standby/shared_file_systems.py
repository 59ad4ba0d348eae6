"""Check of the file system of a store's folder, which only one host may use.

The lock on a folder is an flock, which other hosts do not see, and a broker does not read its journal from the disk
again. Two brokers on two hosts would both confirm messages, and overwrite each other's files. The type of the file
system shows whether other hosts can mount the same folder.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from ...errors import StoreUnwritable

log = logging.getLogger(__name__)

_MOUNTS = Path("/proc/self/mountinfo")
#: file systems that several hosts can mount at the same time; names of FUSE file systems are without "fuse."
_SHARED = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "cephfs", "cifs",
        "coda", "curlftpfs", "davfs", "gcsfuse", "geesefs", "gfs", "gfs2", "glusterfs", "goofys", "gpfs",
        "hdfs", "juicefs", "lizardfs", "lustre", "mfs", "moosefs", "mount-s3", "mountpoint-s3", "ncpfs",
        "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "rclone", "s3fs", "seaweedfs", "smb2",
        "smb3", "smbfs", "sshfs", "vboxsf", "vmhgfs", "vmhgfs-fuse", "wekafs",
    }
)  # fmt: skip
_LOCAL = frozenset(
    {
        "aufs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "nilfs2",
        "ntfs", "ntfs3", "overlay", "reiserfs", "vfat", "xfs", "zfs",
    }
)  # fmt: skip
_IN_MEMORY = frozenset({"ramfs", "rootfs", "tmpfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_file_system(folder: Path, mounts: Path = _MOUNTS) -> None:
    """Raise StoreUnwritable if other hosts can use a folder's file system; log a warning for an unknown one."""
    kind = file_system(folder, mounts)
    if kind in _IN_MEMORY:
        log.warning("%s is on a %s: everything in it is lost when the machine restarts", folder, kind)
    elif kind.removeprefix("fuse.").lower() in _SHARED:
        text = (
            f"{folder} is on a file system of type {kind}, which other hosts can mount, too: their brokers would not "
            "see this one's lock, and both would lose messages. Use a local disk or block volume; or a bucket "
            "(--store s3://bucket/prefix), which may have a standby on another host"
        )
        raise StoreUnwritable(text, path=str(folder), file_system=kind)
    elif kind and kind not in _LOCAL:
        log.warning("%s is on a file system of type %s: make sure that no other host mounts it", folder, kind)


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of a folder's file system, empty if it is unknown. The folder need not exist."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    path = os.path.realpath(folder)
    best, kind = "", ""
    for line in lines:
        # number, parent, device, root, mount point, options, optional fields …, "-", type, source, options
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):  # a later mount at the same point hides the earlier one
            best, kind = point, after.split(" ")[0]
    return kind
