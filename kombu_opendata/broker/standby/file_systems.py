"""The file system of a store's folder, which must be one that only one host uses.

The lock on a folder is an flock, which another host does not see, and the journal is written without reading it from
the disk again. So two brokers on two hosts would both confirm messages, and destroy each other's. The type of the file
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
#: file systems that several hosts can mount at the same time; those of FUSE without "fuse."
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
    """Refuse a folder that other hosts may use at the same time; log a warning if that is not known.

    Args:
        folder: need not exist.

    Raises:
        StoreUnwritable: its file system is a network or cluster file system.
    """
    kind = file_system(folder, mounts)
    if kind in _IN_MEMORY:
        log.warning("%s is on a %s: everything in it is lost when the machine restarts", folder, kind)
    elif kind.removeprefix("fuse.").lower() in _SHARED:
        raise StoreUnwritable(
            f"{folder} is on a file system of type {kind}, which other hosts can mount, too: their brokers would not "
            "see this one's lock, and both would lose messages. Use a local disk or block volume; or a bucket "
            "(--store s3://bucket/prefix), which may have a standby on another host",
            path=str(folder),
            file_system=kind,
        )
    elif kind and kind not in _LOCAL:
        log.warning("%s is on a file system of type %s: make sure that no other host mounts it", folder, kind)


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of a folder's file system, also for a folder that does not exist; empty if it is not known."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place = os.path.realpath(folder)
    best, kind = "", ""
    for line in lines:
        # number, parent, device, root, mount point, options, optional fields …, "-", type, source, options
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        is_above = place == point or place.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):  # a later mount at the same point hides the earlier one
            best, kind = point, after.split(" ")[0]
    return kind
