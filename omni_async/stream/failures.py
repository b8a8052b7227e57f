"""Why a request's stream failed, so that request, edge and chunk are in it.

In: what was raised. Out: an error of the library's.
Never: loses the original.
"""

from __future__ import annotations

from ..errors import CodecError, OmniAsyncError, StreamAborted
from ..model import EdgeName
from ..transport.streams.writer import reason_of


def failure(
    error: Exception, request_id: str, edge: EdgeName, index: int, what: str = ""
) -> OmniAsyncError:
    """The error itself where it is the library's, else :class:`StreamAborted` because of it.

    Without a traceback: whoever keeps the error would keep the request.
    """
    where = f"request {request_id!r} on {edge}, chunk {index}: "
    if what or not isinstance(error, OmniAsyncError):
        reason = reason_of(error)
        text = f"{where}{what or 'it failed'}: {reason}"
        failed = StreamAborted(text, reason=reason, key=request_id, edge=edge)
        failed.__cause__ = error
        return failed
    if isinstance(error, CodecError) and repr(request_id) not in str(error):
        error.args = (f"{where}{error}",)
    return error.with_traceback(None)
