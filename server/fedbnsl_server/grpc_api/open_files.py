"""Room for a connection a site: many systems give a process 1024 open files unless it asks for more."""

import resource

from fedbnsl.errors import SetupError

# For the run folder, the libraries, and callers that ask for the status.
_OTHER_FILES = 128


def make_room(n_connections: int) -> None:
    """Raise this process's limit of open files, if so many connections do not fit in it.

    Raises
    ------
    SetupError
        If the system does not allow as many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n_connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SetupError(
            f"{n_connections} sites need {needed} open files, and this system allows {hard}; raise the limit "
            "(ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of docker)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
