"""End-to-end tests: official clients, hostile clients and failing engines, over real sockets against a whole gateway."""
