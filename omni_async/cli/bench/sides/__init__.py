"""What is compared: one module per contender, each with a producer's and a consumer's half."""
