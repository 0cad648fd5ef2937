"""`make deploy-check`: everything under deploy/ that can be checked without a cluster, a chip or an account."""
