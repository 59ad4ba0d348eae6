"""The folder of staged batches that a URL names.

==================  =====================================================================================
URL                 folder
==================  =====================================================================================
``file:///folder``  :mod:`.local_folder`
``s3://bucket/p``   and ``gs:``, ``az:``, …: :mod:`.bucket_folder`, which needs the extra ``objectstore``
==================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from ..errors import InvalidURL
from .bucket_folder import Bucket
from .folder import Folder
from .local_folder import LocalFolder


def open_folder(url: str, options: Mapping[str, str] | None = None) -> Folder:
    """Open the folder at a URL.

    Raises:
        InvalidURL: no such folder can hold staged batches.
        StoreError: a package is missing, or the settings are invalid; the text says what to do.
    """
    if url.startswith("file://"):
        root = Path(unquote(url.removeprefix("file://")))
        if not root.is_absolute() or root == Path("/"):
            raise InvalidURL(f"{url!r} does not name a folder: write file:///absolute/folder", url=url)
        return LocalFolder(root)
    if url.startswith("memory:"):
        raise InvalidURL("a store in memory can't hold staged batches: no other process sees it; use a folder", url=url)
    return Bucket(url, options or {})
