"""What the store's status codes mean, and whose fault they are.

In: a status, and what was asked. Out: an error with words that say which server or option to look at.
Never: decides what to do next.
"""

from __future__ import annotations

from ...errors import EngineFault, ServerUnreachable

NAME = "MooncakeStoreConnector"

NO_ROOM = -200
INVALID = -600
BEING_WRITTEN = -703
NOT_THERE = -704
ABSENT = frozenset({NOT_THERE, BEING_WRITTEN})
"""There is nothing to read."""
EXISTS = -705
BUSY = frozenset({BEING_WRITTEN, -706, -708, -714})
"""It cannot be removed now: it is being written, was read or seen a moment ago, or is being copied."""
LEASE_EXPIRED = -707
TRANSFER_FAILED = -800
RPC_FAILED = -900
_UNREACHABLE = frozenset({RPC_FAILED, -901, -1010})

_MASTER = "the master at {master} does not answer (option `master`)"
_OWNER = (
    "the client whose memory holds the object does not answer: its process has ended or is stopped, or its "
    "option `host` is an address that this host does not reach"
)
_DISK = "look at `--root_fs_dir` of the master and at the space there"
_WORDS = {
    -1: "internal error of the client",
    -10: "a buffer is too small",
    -101: "no client lends memory: set `segment` somewhere",
    -103: "the master does not know this client (any more)",
    NO_ROOM: "there is no room: raise `segment`, or `localbuf` for an object that lies on disk",
    -300: "client and master are of different versions",
    -400: "the master refuses the key",
    -500: "the write failed",
    INVALID: "the client refuses the call",
    -601: "the object is another client's",
    -700: "the write was refused",
    -701: "the read was refused",
    -702: "no copy of the object can be read, the client that had it is gone",
    BEING_WRITTEN: "the object is being written",
    NOT_THERE: "there is no such object",
    EXISTS: "there is such an object",
    -706: "the object is being read",
    LEASE_EXPIRED: "reading took longer than the master's `--default_kv_lease_ttl`",
    -708: "the object is being copied",
    -710: "the copy of the object is gone",
    -712: "the copy of the object is gone",
    -714: "the object is being read",
    TRANSFER_FAILED: _OWNER,
    -801: "the bytes read are not those written",
    RPC_FAILED: _MASTER,
    -901: _MASTER + "; it may be stopped or overloaded",
    -1010: "the master at {master} does not serve yet",
    -1011: "the master refuses this in its mode",
    -1012: "the master refuses this in its mode",
    -1700: "the tenant's quota of memory is used up",
    -1701: "the tenant has no quota",
}


def words(status: int, master: str) -> str:
    """What a status means, in words for people."""
    if status in _WORDS:
        return _WORDS[status].format(master=master)
    if -1100 >= status > -1200 or -1600 >= status > -1700:
        return f"the store's files failed; {_DISK}"
    if -1000 >= status > -1010:
        return f"the service that elects the master failed (`master` is {master})"
    return "the client did not say why; MC_LOG_LEVEL=INFO lets it say more on stderr"


def fault(status: int, what: str, master: str) -> EngineFault:
    """The error of a call that failed.

    Args:
        what: what was being done, as in ``cannot put x@0_1``.
    """
    kind = ServerUnreachable if status in _UNREACHABLE else EngineFault
    text = f"{what}: {words(status, master)} (status {status})"
    return kind(text, status=status, backend=NAME)
