"""Slots of registered memory: where frames lie while they travel.

In: sizes, and blocks from a memory source. Out: leases, and views that give them back.
Never: knows keys, peers or messages; frees memory under a live operation.
"""
