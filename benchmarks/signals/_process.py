"""A process of its own, at the other end of a pipe: a client takes no CPU time from whoever is measured beside it."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


@contextmanager
def in_a_process(main: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Runs `main(pipe, *arguments)`; begins when it has said something, and ends it with the block."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=main, args=(there, *arguments), daemon=True)
    process.start()
    there.close()  # so that one that fails is noticed
    here.recv()
    try:
        yield here
    finally:
        process.kill()
        process.join()
