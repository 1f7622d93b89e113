"""Pushes layouts to a registry, by skopeo, which keeps every digest."""
import re
import subprocess

from deploy.release.layout import digest_of

# Registries' answers for a manifest or a repository that does not exist.
_ABSENT = re.compile(r"manifest unknown|name unknown|repository name not known|MANIFEST_UNKNOWN|NAME_UNKNOWN|\b404\b|not found", re.I)


class Refused(Exception):
    """The reason why nothing is pushed, in a sentence."""


class Registry:
    def __init__(self, name, plain_http=False):
        """`name`: host and folder, such as ghcr.io/addend."""
        self.name, self.tls = name, "false" if plain_http else "true"

    def digest(self, repository, tag):
        """The digest of a manifest; None if the registry has no such tag."""
        asked = subprocess.run(["skopeo", "inspect", "--raw", f"--tls-verify={self.tls}", f"docker://{self.name}/{repository}:{tag}"],
                               capture_output=True, check=False)
        if asked.returncode == 0:
            return digest_of(asked.stdout)
        said = asked.stderr.decode(errors="replace").strip()
        if _ABSENT.search(said):
            return None
        raise Refused(f"{self.name} does not say whether it has {repository}:{tag}: {said.splitlines()[-1] if said else 'skopeo failed'}.")

    def refuse_published(self, repository, version):
        if self.digest(repository, version):
            raise Refused(f"{self.name}/{repository}:{version} is published, and published tags are never overwritten: raise the version.")

    def refuse_others(self, repository, tag, digest):
        """Refuses a tag that exists with another digest. The same digest is what an interrupted push left."""
        present = self.digest(repository, tag)
        if present not in (None, digest):
            raise Refused(f"{self.name}/{repository}:{tag} exists with another digest ({present}, not {digest}), "
                          "and published tags are never overwritten.")

    def push(self, repository, layout, tag):
        subprocess.run(["skopeo", "copy", "--quiet", "--preserve-digests", f"--dest-tls-verify={self.tls}", f"oci:{layout.folder}:{tag}",
                        f"docker://{self.name}/{repository}:{tag}"], check=True)
