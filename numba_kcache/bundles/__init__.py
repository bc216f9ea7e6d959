"""Move entries between caches: export, import, push, pull."""
