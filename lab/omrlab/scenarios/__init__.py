"""The scenarios, one in each module."""
