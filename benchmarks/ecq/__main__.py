"""`python -m benchmarks.ecq [--part 0.1]`: the whole run, or a smaller one."""

from benchmarks.command import measure_a_part
from benchmarks.ecq import SETTING, Size, run

if __name__ == "__main__":
    measure_a_part("ecq", SETTING, Size, run)
