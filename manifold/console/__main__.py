"""`python -m manifold.console` is `manifold`."""

from manifold.console import main

main()
