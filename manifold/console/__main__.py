"""`python -m manifold.console` is `manifold`."""

from manifold.console import main

if __name__ == "__main__":
    main()
