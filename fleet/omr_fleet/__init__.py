"""Recorded weeks of many machines: replayed through omr's policy on an engine, and tuned.

`omr whatif` does the work, one shard at a time. This package finds the shards, hands groups of them
to an engine, keeps what is done, and has the results added up.
"""
