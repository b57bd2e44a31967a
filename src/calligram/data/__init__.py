"""What exists, and what matches what. Imports nothing else of ours but errors and progress."""
