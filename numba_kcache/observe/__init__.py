"""Listen to what happens and tell it: events, statistics, warnings, text."""
