"""``python -m calligram``."""

from __future__ import annotations

from calligram.cli.main import main

if __name__ == "__main__":
    main()
