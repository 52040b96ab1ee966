"""The questions, one module each: every one is a fold over the items of a run (see report.py).

This package must not read files, parse text or print; it sees segments, forward passes and server events only.
"""
