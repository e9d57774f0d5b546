"""What both disk workloads need: which file system they measure."""

import os


def file_system(path):
    """Type of the file system a path lies on, as the mount table names it."""
    path, best, kind = os.path.realpath(path), "", "unknown"
    try:
        with open("/proc/self/mountinfo") as table:
            for line in table:
                left, _, right = line.partition(" - ")
                mounted = left.split()[4]
                inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
                if inside and len(mounted) >= len(best):
                    best, kind = mounted, right.split()[0]
    except OSError:
        pass
    return kind
