"""`rota rsh`: a command on another node of the job that it is called in."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `rsh`: those of ssh, which are ignored."""
    parser.usage = "rota rsh [options of ssh] HOST COMMAND…"
    parser.takes_all()
    parser.description = (
        "Run a command on another node of the job that calls this: a job that was added with --nodes.\n"
        "It takes the place of ssh, and needs no sshd: the node's runner starts the command, measures it and ends it\n"
        "with the job. Streams, environment, directory and exit status are passed on (255: it could not be started).\n"
        "Open MPI, MPICH and Intel MPI call it by themselves. Options of ssh (-x, -q, -o …) are accepted and ignored;\n"
        "-n leaves standard input alone. Several words are joined and given to `sh -c`, as ssh does."
    )
    parser.examples(
        "rota add --nodes 2 -- sh -c 'for host in $(cat $ROTA_HOSTFILE); do rota rsh $host hostname; done'",
        "rota add --nodes 2 --cores 8 -- mpirun ./simulate",
        "rota rsh -n n2 'cat /proc/loadavg'",
        "$ROTA_RSH n2 hostname        the same, on nodes where rota is not installed",
    )


def execute(args: "argparse.Namespace") -> int:
    """Run it; the exit status is the command's."""
    from rota.runner.rsh import main

    return main(args.words)
