"""Every test of the package under each Python that it supports and this machine has.

Only Debian's own Python sees Debian's modules; for the others pytest, msgpack and what they need
are unpacked from the same packages. msgpack's compiled part fits one version only, so the others
also show that its fallback does.
"""
import glob
import os
import shutil
import subprocess
import tempfile

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
PACKAGES = ("python3-msgpack", "python3-pytest", "python3-pluggy", "python3-iniconfig",
            "python3-packaging", "python3-attr", "python3-py", "python3-more-itertools",
            "python3-exceptiongroup", "python3-tomli")


def interpreter(version):
    """Its path, or None where this machine has none: on PATH, or where pyenv puts them."""
    found = shutil.which(f"python{version}")
    kept = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    for path in kept[-1:] + ([found] if found else []):
        if subprocess.run([path, "-c", "import socket"], capture_output=True,
                          check=False).returncode == 0:
            return path
    return None


def unpack(folder):
    """Debian's modules in `folder`; returns the path to import them from."""
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=folder, check=True,
                   stderr=subprocess.DEVNULL)
    for package in glob.glob(os.path.join(folder, "*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return os.path.join(folder, "usr", "lib", "python3", "dist-packages")


def play(package):
    """Runs them; {version: last line of pytest, or None where there is no interpreter}."""
    said = {}
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        os.chmod(folder, 0o755)  # apt downloads as a user of its own
        modules = unpack(folder)
        for version in VERSIONS:
            path = interpreter(version)
            if path is None:
                said[version] = (None, "no such interpreter")
                continue
            done = subprocess.run(
                [path, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                 "--tb=short", "tests"], cwd=package, capture_output=True, text=True, check=False,
                env={**os.environ, "PYTHONPATH": f"{package}:{modules}",
                     "PYTHONDONTWRITEBYTECODE": "1"})
            if done.returncode != 0:
                print(done.stdout[-6000:], done.stderr[-2000:])
            said[version] = (done.returncode == 0, done.stdout.strip().splitlines()[-1])
    return said
