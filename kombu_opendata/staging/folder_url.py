"""Folders of staged batches, of an instance or at a URL.

==================  =====================================================================================
URL                 folder
==================  =====================================================================================
``file:///folder``  :class:`.LocalFolder`
``s3://bucket/p``   and ``gs:``, ``az:``, …: :mod:`.bucket_folder`, which needs the extra ``objectstore``
==================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from ..errors import InvalidURL
from .bucket_folder import BucketFolder
from .folder import Folder, LocalFolder


def open_folder(url: str, options: Mapping[str, str] | None = None) -> Folder:
    """Open the folder at a URL.

    Raises:
        InvalidURL: no such folder can hold staged batches.
        StoreError: a package is missing, or the settings are invalid; the text has the remedy.
    """
    if url.startswith("file://"):
        root = Path(unquote(url.removeprefix("file://")))
        if not root.is_absolute() or root == Path("/"):
            raise InvalidURL(f"{url!r} does not name a folder: write file:///absolute/folder", url=url)
        return LocalFolder(root)
    if url.startswith("memory:"):
        raise InvalidURL("a store in memory can't hold staged batches: no other process sees it; use a folder", url=url)
    return BucketFolder(url, options or {})


class StagedFolder:
    """Folder of an instance's staged batches, next to its database."""

    def __init__(self, store_url: str, instance: str) -> None:
        self.url = f"{store_url.rstrip('/')}/{instance}.staged"
        self._folder: Folder | None = None

    def open(self) -> Folder:
        """Open the folder at the first call; raise as :func:`open_folder`."""
        if self._folder is None:
            self._folder = open_folder(self.url)
        return self._folder
