"""Load on one gateway process that has one core to itself: many streams, many idle connections, very many requests."""
