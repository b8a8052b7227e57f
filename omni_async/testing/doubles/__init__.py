"""Stand-ins for things a test machine does not have. Each says what it cannot show."""
