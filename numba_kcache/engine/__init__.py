"""From a request to an artifact: the keys that may serve it, where they are found, one compile for all."""
