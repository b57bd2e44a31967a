"""What turns pictures and strings into numbers, computed once or on the fly and saved with the matcher."""
