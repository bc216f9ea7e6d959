"""Pure, frozen values: what the other rooms hand each other. No file, clock, chance, thread or log."""
