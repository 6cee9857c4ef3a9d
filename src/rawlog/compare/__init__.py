"""What two stores, replicas or trees do not agree on."""
