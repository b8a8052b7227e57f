"""Deadlines, owned threads, copies off the loop: the only place that sleeps, shields or starts threads."""
