"""All promises together.

In: a connector's name. Out: a few hundred tests.
Never: adds a test of its own.
"""

from __future__ import annotations

from .absence import Absence
from .addresses import Addresses
from .batches import Batches
from .cancellation import Cancellation
from .claims import Claims
from .concurrency import Concurrency
from .keys import Keys
from .lifecycle import Lifecycle
from .limits import PoolLimits
from .memory import MemoryOfViews
from .metadata import Metadata
from .observing import Observing
from .ownership import Ownership
from .peers import Peers
from .round_trips import RoundTrips
from .stored_streams import StoredStreams
from .stores import Stores
from .stream_cancellation import StreamCancellation
from .stream_ends import StreamEnds
from .streams import Streams
from .threads import Threads
from .timeouts import Timeouts


class TransportConformance(
    RoundTrips,
    Lifecycle,
    Timeouts,
    Absence,
    Keys,
    Claims,
    PoolLimits,
    Batches,
    Ownership,
    MemoryOfViews,
    Metadata,
    Addresses,
    Observing,
    Cancellation,
    Concurrency,
    Threads,
    Peers,
    Streams,
    StreamEnds,
    StreamCancellation,
    Stores,
    StoredStreams,
):
    """Subclass it as ``Test…``, name the connector, and pytest finds every promise.

    Class attributes: ``connector``, and where they differ ``target``, ``kept``, ``ways``,
    ``loops``, ``survives``.
    Methods to override: ``extra(role)``, ``folders()`` and ``narrow()``.
    """
