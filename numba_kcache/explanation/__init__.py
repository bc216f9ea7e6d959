"""Explanations of misses: the history of each kernel, the nearest stored entry, the difference, and its text."""
