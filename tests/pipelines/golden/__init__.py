"""One archive with everything in it, and the rows that it gives, as files: they know no engine, and every engine gives them."""
