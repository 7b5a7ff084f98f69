"""The names of all Redis keys, and what may be part of one."""

from __future__ import annotations

from dataclasses import dataclass

from echomq_plugin.errors import IdTypeError, InvalidIdError, InvalidNameError

DEFAULT_PREFIX = "emq"

OWN_NAMES = frozenset({"held", "held-data", "held-claim", "held-seen", "stalled-count", "held-check", "fence"})
"""Last parts of our own keys. BullMQ keeps a job under its bare id: one of these names would share its key with us."""


def text_id(kind: str, value: object) -> str:
    """
    Make a job id or a token text, as every key and every packed list needs it.

    Redis' msgpack fails a whole script for one *bin* item and turns large ints into floats, so all becomes text here.

    Args:
        kind: ``"job_id"``, ``"token"`` or ``"delivery"``, for the error.
        value: text, an int, or ASCII bytes.

    Raises:
        IdTypeError: it is of another type.
        InvalidIdError: it is empty, or has no UTF-8 form.

    """
    if isinstance(value, bytes):
        if not value.isascii():
            raise InvalidIdError(kind, value, "decode bytes to text first, only ASCII bytes are unambiguous")
        value = value.decode("ascii")
    elif isinstance(value, int) and not isinstance(value, bool):
        bits = value.bit_length()
        try:
            value = int.__repr__(value)
        except ValueError:  # more digits than Python writes
            raise InvalidIdError(kind, f"an int of {bits} bits", "has too many digits: write it as text") from None
    elif isinstance(value, str):
        # An enum's member says its own name; another runtime knows only its text.
        value = str.__str__(value)
    else:
        raise IdTypeError(kind, value)
    if not value:
        raise InvalidIdError(kind, value, "must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidIdError(kind, value, "has no UTF-8 form (a lone surrogate): escape it first") from None
    return value


def key_part(kind: str, name: object) -> str:
    """
    Check a queue or a prefix.

    A ``:`` would let two different (queue, job) pairs share one lock key, so it is refused: percent-encode it.

    Raises:
        InvalidNameError: it is not text, empty, has a ``:`` or no UTF-8 form.

    """
    if not isinstance(name, str):
        raise InvalidNameError(kind, name, "must be text")
    name = str.__str__(name)
    if not name:
        raise InvalidNameError(kind, name, "must not be empty")
    if ":" in name:
        raise InvalidNameError(kind, name, "must not contain ':', write it as '%3A'")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidNameError(kind, name, "has no UTF-8 form (a lone surrogate): escape it first") from None
    return name


def percent_encoded(name: str) -> str:
    """Make a host's own queue name fit for a key: ``%`` and ``:`` are percent-encoded, all else stays readable."""
    return name.replace("%", "%25").replace(":", "%3A")


def queues_key(prefix: str) -> str:
    """Return the key of the set of all queues under a prefix: every worker sweeps the queues of dead ones too."""
    return f"{prefix}:queues"


def has_hash_tag(key: str) -> bool:
    """Tell whether Redis Cluster would hash only a part of this key (a non-empty ``{…}``)."""
    opening = key.find("{")
    return opening >= 0 and key.find("}", opening) > opening + 1


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """
    The keys of one queue.

    ``lock`` and ``stalled`` belong to the protocol and are shared with other runtimes; the rest is our own.
    """

    prefix: str
    queue: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", key_part("prefix", self.prefix))
        object.__setattr__(self, "queue", key_part("queue", self.queue))

    @property
    def base(self) -> str:
        """What every key of this queue begins with; the frozen script builds lock keys from it."""
        return f"{self.prefix}:{self.queue}:"

    def lock(self, job_id: str) -> str:
        """Return the lock key of a job."""
        return f"{self.base}{job_id}:lock"

    @property
    def stalled(self) -> str:
        """Set of EchoMQ's and BullMQ's own checkers; the frozen script removes renewed ids from it."""
        return self.base + "stalled"

    @property
    def held(self) -> str:
        """Hash of entries: job id to the token of the run that holds, or held, its lock."""
        return self.base + "held"

    @property
    def held_data(self) -> str:
        """Hash: job id to the entry's data, opaque to Lua."""
        return self.base + "held-data"

    @property
    def held_claim(self) -> str:
        """Hash: job id to the claim (token and end) of whoever is putting it back."""
        return self.base + "held-claim"

    @property
    def held_seen(self) -> str:
        """Hash: job id to the token that a pass of the sweep found without a lock."""
        return self.base + "held-seen"

    @property
    def stalled_count(self) -> str:
        """Hash: job id to how often it stalled, with the dead token and the time that last moved it."""
        return self.base + "stalled-count"

    @property
    def held_check(self) -> str:
        """Key whose life spaces the passes of the sweep."""
        return self.base + "held-check"

    @property
    def fence(self) -> str:
        """Counter behind ``Lock.fence``."""
        return self.base + "fence"
