"""One comprehensive archive and its rows as files, independent of the engine that produces them."""
