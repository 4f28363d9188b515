"""The one task of Celery's workers."""

import os
import subprocess

from celery import Celery

URL = os.environ["CELERY_REDIS"]
app = Celery("queue_celery", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 64
app.conf.broker_connection_retry_on_startup = True


@app.task
def call(command):
    """Run a command; its exit code is the result."""
    return subprocess.call(command)
