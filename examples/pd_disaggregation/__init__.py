"""Prefill and decode instances of a small transformer behind the real vllm-router, KV caches in between.

In: nothing but this repository. Out: ``python -m examples.pd_disaggregation.run``.
Never: a model of use to anybody; everything around it is meant to be copied.
"""
