"""From named inputs to a key: pure, total, labelled and length-prefixed."""
