"""Complete programs: which matcher, which objective, which stages, and what a paper claims of them."""
