"""Certificates for tests, made by the openssl command."""
import pathlib
import subprocess

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
HERE = "IP:127.0.0.1,DNS:localhost"


def _openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """A certificate authority; its own certificate is the file `ca`."""

    def __init__(self, folder, name):
        self.folder = pathlib.Path(folder) / name
        self.folder.mkdir()
        self.ca, self.key = self.folder / "ca.crt", self.folder / "ca.key"
        _openssl("req", "-x509", *NEW_KEY, "-days", 1, "-keyout", self.key, "-out", self.ca, "-subj", f"/CN={name}")

    def sign(self, holder, names=HERE, trusting=()):
        """Returns a folder with tls.crt, tls.key and ca.crt, as cert-manager fills a secret. `names`: in openssl's syntax.

        The holder trusts this authority, or the authorities in `trusting` instead.
        """
        folder = self.folder / holder
        folder.mkdir()
        request, extensions = folder / "request", folder / "names"
        extensions.write_text(f"subjectAltName={names}")
        _openssl("req", *NEW_KEY, "-keyout", folder / "tls.key", "-out", request, "-subj", f"/CN={holder}")
        _openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.key, "-CAcreateserial", "-days", 1,
                 "-extfile", extensions, "-out", folder / "tls.crt")
        (folder / "ca.crt").write_text("".join(authority.ca.read_text() for authority in trusting or (self,)))
        return folder


def flags(folder):
    """The flags with which a service or addendctl uses the certificate in `folder`."""
    return [f"--tls-cert={folder}/tls.crt", f"--tls-key={folder}/tls.key", f"--tls-ca={folder}/ca.crt"]


class Secret:
    """A folder as Kubernetes mounts a secret: its files are links, and all change at once."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()

    def show(self, content):
        """Switches the links to another folder's files, atomically."""
        data, fresh = self.folder / "..data", self.folder / "..fresh"
        fresh.symlink_to(content)
        fresh.replace(data)
        for name in ("tls.crt", "tls.key", "ca.crt"):
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
