"""What the exit status of a PBS client means. It is the server's error number, of which the low eight bits are left.

TORQUE has two more errors after the seventh, so from 160 on the same number means another thing there.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from rota.drivers.dialect import Answer, Class

__all__ = ["OPENPBS", "TORQUE", "Error", "read_error"]


class Error(NamedTuple):
    """One error number."""

    result: Class
    """For a question, or a request that may be repeated."""
    meaning: str
    submit: Class | None = None
    """For a submission, if otherwise."""


OPENPBS: Mapping[int, Error] = {
    1: Error("fatal", "the command refused its arguments"),
    2: Error("fatal", "the command does not know an option"),
    3: Error("fatal", "more elements than an array may have"),
    13: Error("transient", "connection table full"),
    17: Error("transient", "the licence server is down"),
    32: Error("fatal", "a hook failed"),
    35: Error("not-found", "job has finished"),
    36: Error("not-found", "no job history is kept"),
    38: Error("transient", "limit on jobs of this user or project reached"),
    39: Error("transient", "limit on resources of this user or project reached"),
    54: Error("not-found", "job history was deleted"),
    55: Error("not-found", "element of an array has finished"),
    57: Error("transient", "the server could not save the job"),
    65: Error("fatal", "a hook of the site refused it"),
    69: Error("fatal", "job name too long"),
    71: Error("fatal", "job script too big"),
    104: Error("transient", "the server wants to be asked again later"),
    153: Error("not-found", "unknown job id"),
    156: Error("fatal", "invalid request"),
    159: Error("fatal", "no permission"),
    160: Error("fatal", "access from this host not allowed"),
    162: Error("transient", "system error, or no connection to the server", "ambiguous"),
    163: Error("transient", "internal error of the server", "ambiguous"),
    166: Error("fatal", "bad value of an attribute or resource"),
    168: Error("transient", "request invalid for the state of the job", "fatal"),
    170: Error("fatal", "unknown queue"),
    171: Error("transient", "invalid credential"),
    172: Error("transient", "expired credential"),
    173: Error("fatal", "queue not enabled"),
    174: Error("fatal", "no access to the queue"),
    175: Error("fatal", "user not known to the server, or root"),
    183: Error("transient", "premature end of message", "ambiguous"),
    185: Error("transient", "no free connections", "ambiguous"),
    186: Error("transient", "no server"),
    187: Error("fatal", "unknown resource"),
    188: Error("fatal", "job exceeds the limits of the queue"),
    191: Error("fatal", "no queue takes the job"),
    193: Error("transient", "the node refused the job", "fatal"),
    196: Error("transient", "resources temporarily unavailable"),
    198: Error("transient", "most jobs that the queue may hold"),
    200: Error("fatal", "limit exceeds what is allowed"),
    201: Error("fatal", "bad account"),
    202: Error("not-found", "job is already exiting"),
    208: Error("transient", "protocol error", "ambiguous"),
    212: Error("transient", "server is shutting down"),
    222: Error("transient", "the server cannot reach the node"),
    237: Error("transient", "deletion is in progress"),
    250: Error("transient", "no licence is free"),
}

TORQUE: Mapping[int, Error] = {
    1: Error("fatal", "the command refused its arguments, or was run by root"),
    2: Error("fatal", "the command does not know an option"),
    10: Error("transient", "premature end of file from the server", "ambiguous"),
    11: Error("transient", "the server could not save the job"),
    16: Error("transient", "no connection could be made"),
    17: Error("transient", "the server wants to be asked again later"),
    29: Error("transient", "server not found"),
    30: Error("transient", "server busy"),
    67: Error("transient", "end of file from the server", "ambiguous"),
    110: Error("transient", "connection timed out"),
    111: Error("transient", "connection refused"),
    113: Error("transient", "no route to the server"),
    153: Error("not-found", "unknown job id"),
    156: Error("fatal", "invalid request"),
    159: Error("fatal", "no permission"),
    160: Error("transient", "trqauthd not found"),
    161: Error("transient", "munge not found"),
    162: Error("fatal", "access from this host not allowed"),
    164: Error("transient", "system error", "ambiguous"),
    165: Error("transient", "internal error of the server", "ambiguous"),
    168: Error("fatal", "bad value of an attribute or resource"),
    170: Error("transient", "request invalid for the state of the job", "fatal"),
    172: Error("fatal", "unknown queue"),
    173: Error("transient", "invalid credential"),
    174: Error("transient", "expired credential"),
    175: Error("fatal", "queue not enabled"),
    176: Error("fatal", "no access to the queue"),
    177: Error("fatal", "user not known to the server, or not from this host"),
    185: Error("transient", "premature end of message", "ambiguous"),
    187: Error("transient", "no free connections", "ambiguous"),
    188: Error("transient", "no server"),
    189: Error("fatal", "unknown resource"),
    190: Error("fatal", "job exceeds the limits of the queue"),
    193: Error("fatal", "no queue takes the job"),
    195: Error("transient", "the node refused the job", "fatal"),
    198: Error("transient", "resources temporarily unavailable"),
    200: Error("transient", "most jobs that the queue may hold"),
    202: Error("fatal", "limit exceeds what is allowed"),
    203: Error("fatal", "bad account"),
    204: Error("not-found", "job is already exiting"),
    208: Error("fatal", "dependency on a job that is not known"),
    210: Error("transient", "protocol error", "ambiguous"),
    214: Error("transient", "server is shutting down"),
    224: Error("transient", "the server cannot reach the node"),
    228: Error("transient", "most jobs that the queue may hold of this user"),
    234: Error("not-found", "unknown array"),
    235: Error("fatal", "bad job array"),
    237: Error("transient", "time-out", "ambiguous"),
    238: Error("not-found", "job not found"),
    241: Error("fatal", "the queue takes no arrays"),
    243: Error("transient", "the server is out of memory", "ambiguous"),
    244: Error("transient", "the server could not lock", "ambiguous"),
    246: Error("transient", "the server is out of threads", "ambiguous"),
    247: Error("transient", "socket error", "ambiguous"),
    248: Error("transient", "no connection to the socket", "ambiguous"),
    249: Error("transient", "socket error on writing", "ambiguous"),
    250: Error("transient", "socket error on reading", "ambiguous"),
    251: Error("transient", "socket closed", "ambiguous"),
}

NEVER_SENT = (
    "cannot connect to server",
    "connection refused",
    "couldn't connect to cluster",
    "unable to communicate with",
)

LATER = ("maximum number of jobs already in queue", "server busy", "try again later")
"""Refusals of the moment, whatever number a release gives them."""

CUT_OFF = ("connection reset", "broken pipe", "end of file", "timed out", "timeout", "communication failure")
"""After these words of a submission, whatever its exit status: it may have been taken."""


def read_error(
    answer: Answer, errors: Mapping[int, Error], doing: Literal["ask", "submit"] = "ask"
) -> tuple[Class, str]:
    """The class of a failed command (or of one that was ended for taking too long), with its own words."""
    unknown: Class = "ambiguous" if doing == "submit" else "transient"
    if answer.code is None:
        return unknown, answer.words
    words = answer.words
    if answer.code == 0:
        return unknown, words
    lower = words.lower()
    result: Class
    never = any(text in lower for text in NEVER_SENT)
    if doing == "submit" and not never and any(text in lower for text in CUT_OFF):
        return "ambiguous", f"exit status {answer.code}: {words}"
    if answer.code < 0 or answer.code in (126, 127, 255):
        # Ended by a signal; not there, or not executable just now; ssh, or no connection to the server.
        return "transient" if never or answer.code in (126, 127) else unknown, f"exit status {answer.code}: {words}"
    error = errors.get(answer.code)
    if error is None:
        result, words = "fatal" if doing == "submit" else "transient", f"exit status {answer.code}: {words}"
    else:
        result = error.submit or error.result if doing == "submit" else error.result
        words = f"{error.meaning} ({answer.code}): {words}"
    if result == "not-found" and doing == "submit":
        result = "fatal"
    if result in ("ambiguous", "fatal") and (never or (result == "fatal" and any(text in lower for text in LATER))):
        result = "transient"
    return result, words
