"""The profiles in docs/examples contain existing settings."""

import pytest

from manifold.settings import Settings
from tests.support.servers import ROOT

EXAMPLES = ROOT / "docs" / "examples"
PROFILES = sorted(path.name for path in EXAMPLES.glob("*.env"))


def profile(name: str) -> dict[str, str]:
    """The settings in a file that a shell would source."""
    lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line and not line.startswith("#")]
    return {variable.removeprefix("MANIFOLD_").lower(): value for variable, value in (line.split("=", 1) for line in lines)}


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_contains_only_settings(name: str) -> None:
    assert profile(name).keys() <= Settings.model_fields.keys()
    Settings(**profile(name))  # type: ignore[arg-type]  # strings, as in the environment
