"""What the papers claim, as rows that can be run, judged and reported."""
