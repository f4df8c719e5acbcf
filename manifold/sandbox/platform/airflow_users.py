"""The users of the embedded Airflow: one for each role of its simple auth manager. The first start generates their passwords.

The three are those of compose and Terraform, too. Airflow reads the passwords from a JSON file among the secrets.
"""

import json
import secrets
from pathlib import Path

from manifold.contracts.errors import Permanent
from manifold.runtime import secret_files
from manifold.runtime.tls import verified
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.settings import Settings

ADMIN, OPERATOR, VIEWER = "admin", "operator", "viewer"
ROLES = {ADMIN: "admin", OPERATOR: "op", VIEWER: "viewer"}  # by user, in the words of Airflow's setting
FILE = "airflow_passwords.json"
_BYTES = 18


def users() -> str:
    """Airflow's setting `simple_auth_manager_users`."""
    return ",".join(f"{user}:{role}" for user, role in ROLES.items())


def passwords_file(settings: Settings) -> Path:
    """Where the passwords stand."""
    return secret_files.folder(settings.home) / FILE


def make_up(settings: Settings) -> None:
    """A password for each user, where the home has none."""
    secret_files.made_up(settings.home, FILE, lambda: json.dumps({user: secrets.token_urlsafe(_BYTES) for user in ROLES}))


def password_of(settings: Settings, user: str) -> str:
    """The password of one of `ROLES`.

    Raises:
        Permanent: this home has none, or the file is not what was written.
    """
    try:
        return str(json.loads(secret_files.read(settings.home, FILE) or "{}")[user])
    except (ValueError, KeyError, TypeError) as exc:
        file = passwords_file(settings)
        raise Permanent(
            f"{file} has no password of {user}; where the file is not there, `manifold up` makes up all of them"
        ) from exc


def logged_in(settings: Settings, url: str, user: str = OPERATOR) -> AirflowApi:
    """A client of the embedded Airflow at `url`."""
    return AirflowApi(url, user, password_of(settings, user), verify=verified(settings, url))
