"""Users of the embedded Airflow: one for each role of its simple auth manager, with passwords generated at the first start.

Compose and Terraform configure the same three users. Airflow reads the passwords from a JSON file in the secrets folder.
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
ROLES = {ADMIN: "admin", OPERATOR: "op", VIEWER: "viewer"}  # role by user, as in Airflow's setting
FILE = "airflow_passwords.json"
_PASSWORD_BYTES = 18


def users() -> str:
    """Return Airflow's setting `simple_auth_manager_users`."""
    return ",".join(f"{user}:{role}" for user, role in ROLES.items())


def passwords_file(settings: Settings) -> Path:
    """Return the path of the passwords file."""
    return secret_files.folder(settings.home) / FILE


def create_missing(settings: Settings) -> None:
    """Generate a password for each user, if there is no file yet."""

    def new_passwords() -> str:
        return json.dumps({user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in ROLES})

    secret_files.get_or_create(settings.home, FILE, new_passwords)


def password_of(settings: Settings, user: str) -> str:
    """Return the password of a user in `ROLES`.

    Raises:
        Permanent: there is no password file, or it is malformed.
    """
    try:
        passwords = json.loads(secret_files.read(settings.home, FILE) or "{}")
        return str(passwords[user])
    except (ValueError, KeyError, TypeError) as exc:
        file = passwords_file(settings)
        raise Permanent(
            f"{file} has no password of {user}; where the file is not there, `manifold up` generates all of them"
        ) from exc


def logged_in(settings: Settings, url: str, user: str = OPERATOR) -> AirflowApi:
    """Return a client of the embedded Airflow at `url`, which logs in as `user` on its first request."""
    return AirflowApi(url, user, password_of(settings, user), verify=verified(settings, url))
