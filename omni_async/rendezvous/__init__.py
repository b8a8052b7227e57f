"""What peers say to each other, and what it means for memory."""
