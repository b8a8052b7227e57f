"""vLLM-Omni 0.30: what its Mooncake connector says on its side channel, and how it writes objects.

In: requests and payloads of that system. Out: ours, and back.
Never: imports vLLM-Omni; evaluates or imports what it was sent.
"""
