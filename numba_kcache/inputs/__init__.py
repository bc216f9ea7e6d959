"""Read the world into key components: sources, headers, Python functions, link files."""
