"""The study of speculative decoding on Trainium2, repeated on the lab: its prompt families, its method, its comparisons."""
