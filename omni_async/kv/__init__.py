"""KV caches: from the process that fills one to the processes that read it.

In: an engine's own cache tensors and block numbers. Out: the same blocks in another process's cache.
Never: computes attention, allocates blocks, decides what is recomputed.
"""
