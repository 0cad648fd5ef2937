"""Results made public: pages with charts, and metrics in CloudWatch."""
