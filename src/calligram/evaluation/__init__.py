"""How good a matcher is. ``ranking`` is pure arithmetic; ``retrieval`` runs matchers; nothing here trains."""
