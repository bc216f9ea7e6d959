"""Stores behind the local one: other directories, bundles, servers. They may be slow or down, and are not trusted."""
