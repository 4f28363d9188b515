"""The one task of huey's workers."""

import os
import subprocess

from huey import SqliteHuey

huey = SqliteHuey(filename=os.environ["HUEY_FILE"])


@huey.task()
def call(command):
    """Run a command; its exit code is the result."""
    return subprocess.call(command)
