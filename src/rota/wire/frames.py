"""Frames: a 4-byte big-endian length and that many bytes of JSON. No input or output here; standard library only."""

from rota.model.errors import ProtocolError

__all__ = ["MAX_DEPTH", "MAX_FRAME", "Decoder", "check_depth", "encode"]

MAX_FRAME = 4_194_304
MAX_DEPTH = 32
_HEADER = 4

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def encode(payload: bytes, limit: int = MAX_FRAME) -> bytes:
    """The frame that carries this payload."""
    size = len(payload)
    if not 0 < size <= limit:
        raise ProtocolError(f"a frame carries 1 to {limit} bytes, not {size}")
    return size.to_bytes(4, "big") + payload


class Decoder:
    """Cuts a stream of bytes into frames, however the stream was split.

    A bad length is raised after the frames before it were returned, so that what was said properly is heard; nothing
    can follow it.
    """

    __slots__ = ("_broken", "_buffer", "limit", "one_by_one")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.one_by_one = False
        """Whether `feed` returns one payload at most: what follows may be allowed more, or nothing at all."""
        self._buffer = bytearray()
        self._broken: int | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are now complete."""
        if self._broken is not None:
            self._refuse(self._broken)
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        frames: list[bytes] = []
        start, end = 0, len(buffer)
        while end - start >= _HEADER and not (self.one_by_one and frames):
            size = int.from_bytes(buffer[start : start + _HEADER], "big")
            if not 0 < size <= self.limit:
                self._broken = size
                self._buffer = bytearray()
                if not frames:
                    self._refuse(size)
                return frames
            stop = start + _HEADER + size
            if stop > end:
                break
            frames.append(bytes(buffer[start + _HEADER : stop]))
            start = stop
        if buffer is self._buffer:
            del self._buffer[:start]
        elif start < end:
            self._buffer += buffer[start:]
        return frames

    @property
    def broken(self) -> bool:
        """Whether a bad length was seen: the next `feed` raises."""
        return self._broken is not None

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def _refuse(self, size: int) -> None:
        raise ProtocolError(f"a frame of {size} bytes was announced; 1 to {self.limit} are allowed")


def check_depth(payload: bytes, limit: int = MAX_DEPTH) -> None:
    """Raise ProtocolError if JSON text is nested deeper than `limit`.

    Nearly every message has too few brackets to be deep, which two counts tell. The others lose their strings, then
    everything but brackets, then one level per round: a handful of passes in C, whatever the size. Text that is not
    JSON may be refused too.
    """
    if payload.count(b"[") + payload.count(b"{") <= limit:
        return
    if b"\\" in payload:
        payload = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    if b'"' in payload:
        payload = b"".join(payload.split(b'"')[::2])
    rest = payload.translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(limit):
        if not rest:
            return
        rest = rest.replace(b"[]", b"")
    if rest:
        raise ProtocolError(f"JSON nested deeper than {limit}, or not JSON")
