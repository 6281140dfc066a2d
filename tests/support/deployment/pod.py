"""Runs a container of a manifest on this machine, confined as the manifest says, without an engine.

The process gets a root folder of its own that is read-only but for the mounts, the user and group of the manifest, no
capabilities, no new privileges, the system calls of a container, and is the first process of a PID namespace. Network
and machine are this machine's, and the files are those of this checkout instead of an image. Needs root, unshare and
setpriv.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.deployment import seccomp
from tests.support.deployment.manifests import Object
from tests.support.deployment.programs import ROOT


class Container:
    """A process that runs for the length of a `with` block."""

    def __init__(
        self,
        pod: Object,
        container: Object,
        volumes: Mapping[str, Path],
        command: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
    ) -> None:
        """Starts it. volumes: a folder for each volume that the container mounts. command: without the interpreter."""
        security = pod["securityContext"]
        user, group = security["runAsUser"], security["runAsGroup"]
        script = ["set -e", *_root(), *_volumes(container, volumes, security["fsGroup"])]
        if container["securityContext"]["readOnlyRootFilesystem"]:
            script.append("mount -o remount,ro,bind $ROOT")
        confined = [
            *("setpriv", f"--reuid={user}", f"--regid={group}", f"--groups={security['fsGroup']}", "--no-new-privs"),
            *("--bounding-set=-all", "--inh-caps=-all", "--"),
            *("env", "-i", "PATH=/usr/bin", "HOME=/home/emberline"),
            *(f"{name}={value}" for name, value in variables.items()),
            *(sys.executable, seccomp.__file__, sys.executable, "-B", "-m", *command),
        ]
        script.append(f"cd $ROOT && exec chroot . {shlex.join(confined)}")
        root = log.parent / f"{log.stem}-root"
        root.mkdir()
        with log.open("w") as output:
            self._outer = subprocess.Popen(
                [
                    *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
                    *("bash", "-c", "\n".join(script)),
                ],
                env={"PATH": os.environ["PATH"], "ROOT": str(root)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.log = log

    def terminate(self) -> int:
        """Sends SIGTERM to the first process of the container and returns the status that it ends with."""
        pid = self._outer.pid
        (first,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        return self._outer.wait(60)

    def wait(self) -> int:
        """Waits until it ends, and returns its status."""
        return self._outer.wait(60)

    @property
    def is_running(self) -> bool:
        """Returns whether it has not ended."""
        return self._outer.poll() is None

    def __enter__(self) -> Container:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._outer.kill()
        self._outer.wait()


def skip_where_it_cannot_run() -> None:
    """Skips the test where the machine or the user does not allow all of this."""
    if os.geteuid() or platform.machine() != "x86_64":
        pytest.skip("confining a process as a container needs root, on x86-64")
    if not all(map(shutil.which, ("unshare", "setpriv", "chroot"))):
        pytest.skip("unshare or setpriv (util-linux) is not installed")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let root make namespaces")
    for path in (ROOT, Path(sys.base_prefix)):
        if path.stat().st_mode & 0o005 != 0o005:
            pytest.skip(f"{path} is closed to other users, so that the user of a container cannot run what is there")


def _root() -> list[str]:
    """Returns the commands that make a root folder of the system's programs, Python and this checkout."""
    lines = ["mount -t tmpfs -o mode=755 tmpfs $ROOT", "mkdir -p $ROOT/{proc,dev,tmp} $ROOT/home/emberline"]
    # A copy of /etc, because volumes are mounted below it.
    lines.append("cp -a /etc $ROOT/etc")
    lines += [_bound(path) for path in ("/usr", *_files())]
    links = [f"[ ! -e {link} ] || ln -s usr{link} $ROOT{link}" for link in ("/bin", "/sbin", "/lib", "/lib64")]
    return [*lines, *links, "mount --rbind /dev $ROOT/dev", "mount -t proc proc $ROOT/proc"]


def _files() -> list[str]:
    """Returns the folders outside /usr that a process of this checkout needs."""
    return [path for path in (sys.base_prefix, str(ROOT)) if not path.startswith("/usr")]


def _bound(path: str) -> str:
    return f"mkdir -p $ROOT{path} && mount --bind {path} $ROOT{path} && mount -o remount,ro,bind $ROOT{path}"


def _volumes(container: Object, volumes: Mapping[str, Path], group: int) -> list[str]:
    """Returns the commands that mount the volumes, which belong to root and can be written by the group (fsGroup)."""
    lines = []
    for mount in container["volumeMounts"]:
        source = volumes[mount["name"]] / mount.get("subPath", "")
        source.mkdir(parents=True, exist_ok=True)
        for path in (volumes[mount["name"]], source):
            os.chown(path, 0, group)
            path.chmod(0o2775)
        target = f"$ROOT{mount['mountPath']}"
        lines.append(f"mkdir -p {target} && mount --bind {source} {target}")
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,ro,bind {target}")
    # A checkout below /tmp is hidden by the volume there.
    places = tuple(f"{mount['mountPath'].rstrip('/')}/" for mount in container["volumeMounts"])
    return [*lines, *(_bound(path) for path in _files() if path.startswith(places))]
