"""Compression of the parts of a batch object, as frames of Zstandard, and their bounded decompression."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: twice as fast as zstd's default, and as small for rows that resemble each other
_LEVEL = 1
_MIN_WINDOW_LOG = 10


class FrameError(ValueError):
    """A frame that does not decompress, or to another size than it may have."""


class Compressor:
    """Compressor of frames that name the size of their contents."""

    def __init__(self) -> None:
        self._zstd = zstd.ZstdCompressor(_LEVEL)

    def frame(self, data: bytes) -> bytes:
        return self._zstd.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(frame: bytes, limit: int) -> bytes:
    """Return the contents of a frame, which must be all of ``frame``, in memory of at most about ``limit`` bytes.

    Raises:
        FrameError: the frame is damaged, or its contents have more than ``limit`` bytes.
    """
    try:
        size: int | None = zstd.get_frame_info(frame).decompressed_size
        if size is None or size > limit:
            raise FrameError(f"a frame of {'unknown size' if size is None else f'{size} bytes'}; the limit is {limit}")
        window_log = max(size.bit_length(), _MIN_WINDOW_LOG)
        decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})
        data = decompressor.decompress(frame, size)
    except zstd.ZstdError as exc:
        raise FrameError(f"a frame that does not decompress ({exc})") from exc
    if len(data) != size or not decompressor.eof or decompressor.unused_data:
        raise FrameError(f"a frame that does not end after its {size} bytes")
    return data
