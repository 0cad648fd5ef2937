"""What is written in C for the gateway, and how all that is compiled is built."""
