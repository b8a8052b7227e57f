"""One folder per vendor, with the same file names in each."""
