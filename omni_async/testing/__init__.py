"""The public kit for authors of backends: conformance suite, faults, peer processes, leak checks."""
