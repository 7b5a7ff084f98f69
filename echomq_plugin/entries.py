"""What an entry's data holds: who runs the job, from which delivery, and what the host needs to put it back."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from echomq_plugin.errors import IdTypeError, InvalidIdError

Payload = bytes | str | None


def checked_payload(payload: object) -> Payload:
    """
    Return a payload that comes back from Redis as it was given.

    Raises:
        IdTypeError: it is neither bytes nor text.
        InvalidIdError: text without a UTF-8 form.

    """
    if payload is None or isinstance(payload, bytes):
        return payload
    if not isinstance(payload, str):
        raise IdTypeError("payload", payload, "pass bytes or text, as the host would put them back")
    try:
        payload.encode()
    except UnicodeEncodeError:
        raise InvalidIdError("payload", payload, "has no UTF-8 form (a lone surrogate): pass bytes") from None
    return payload


@dataclass(frozen=True, slots=True)
class EntryData:
    """
    The data of one entry. Lua never unpacks it.

    Attributes:
        worker: the worker, as it names itself.
        started_at: wall clock, in ms since the epoch; for people who look.
        delivery: the delivery that the run was started from, or None.
        payload: what the host gave, or None.

    """

    worker: str
    started_at: int
    delivery: str | None = None
    payload: Payload = None

    def pack(self) -> bytes:
        """Return the bytes that go into ``held-data``."""
        values = {"worker": self.worker, "started_at": self.started_at}
        if self.delivery is not None:
            values["delivery"] = self.delivery
        if self.payload is not None:
            values["payload"] = self.payload
        data: bytes = msgpack.packb(values, use_bin_type=True)
        return data

    @classmethod
    def unpack(cls, data: bytes | None) -> EntryData:
        """Read ``held-data``; what is missing or unreadable (another version's, say) is left empty."""
        try:
            values = msgpack.unpackb(data or b"", raw=False)
        except Exception:  # msgpack's errors have no common root
            values = {}
        if not isinstance(values, dict):
            values = {}
        started_at, delivery, payload = values.get("started_at"), values.get("delivery"), values.get("payload")
        return cls(
            worker=str(values.get("worker") or ""),
            started_at=started_at if isinstance(started_at, int) else 0,
            delivery=delivery if isinstance(delivery, str) else None,
            payload=payload if isinstance(payload, bytes | str) else None,
        )
