"""Stores behind the local one: other directories, bundles, servers. Slow, allowed to be down, never believed."""
