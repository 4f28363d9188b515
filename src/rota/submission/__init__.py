"""From plain arguments to what is sent: the one way in which the command line and the Python API make a batch.

Everything is checked here before the manager hears of it: text, amounts, every line of a file, the environment.
"""

from rota.submission.build import Submission, build
from rota.submission.environment import submit_environment
from rota.submission.options import Changes, JobOptions
from rota.submission.patching import make_patch
from rota.submission.sending import send
from rota.submission.sources import LineFile

__all__ = ["Changes", "JobOptions", "LineFile", "Submission", "build", "make_patch", "send", "submit_environment"]
