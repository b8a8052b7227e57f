"""What several backends look at on a host: RDMA, topology, limits, variables.

Text and folders go in, facts and :class:`~omni_async.abc.Finding` come out.
"""
