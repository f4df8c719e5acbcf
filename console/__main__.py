"""`python -m console` is `manifold`."""

from console import main

main()
