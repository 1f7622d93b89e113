"""Folders in the OCI image layout: blobs named by their digest, and an index of tagged manifests.

The index has a line for each manifest, so that scripts/verify-release reads it without a parser of JSON.
"""
import dataclasses
import hashlib
import json
import pathlib
import posixpath
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_NAME = "org.opencontainers.image.ref.name"


def digest_of(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def compact(value):
    """JSON with sorted keys and without spaces: equal values are equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@dataclasses.dataclass
class Content:
    """Bytes of a media type, and the annotations of the descriptor that names them in a manifest."""
    media_type: str
    data: bytes
    annotations: dict = dataclasses.field(default_factory=dict)


class Layout:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        (self.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (self.folder / "oci-layout").write_bytes(compact({"imageLayoutVersion": "1.0.0"}))

    def _index(self):
        path = self.folder / "index.json"
        return json.loads(path.read_text())["manifests"] if path.exists() else []

    def _write_index(self, entries):
        lines = sorted(compact(entry).decode() for entry in entries)
        (self.folder / "index.json").write_text('{"manifests":[\n' + ",\n".join(lines) + '\n],"schemaVersion":2}\n')

    def path(self, digest):
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def read(self, digest):
        return self.path(digest).read_bytes()

    def tags(self):
        """{tag: digest of its manifest}."""
        return {entry["annotations"][_NAME]: entry["digest"] for entry in self._index()}

    def manifest(self, tag):
        return json.loads(self.read(self.tags()[tag]))

    def _descriptor(self, content):
        digest = digest_of(content.data)
        self.path(digest).write_bytes(content.data)
        described = {"mediaType": content.media_type, "digest": digest, "size": len(content.data)}
        return {**described, "annotations": content.annotations} if content.annotations else described

    def add(self, tag, config, layers, annotations=None):
        """Adds a manifest of these contents under a tag, which it takes from a former manifest. Returns the digest."""
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self._descriptor(config),
                    "layers": [self._descriptor(layer) for layer in layers]}
        if annotations:
            manifest["annotations"] = annotations
        entry = self._descriptor(Content(MANIFEST, compact(manifest), {_NAME: tag}))
        self.normalize(entry)
        return entry["digest"]

    def normalize(self, *added):
        """Writes the index anew in this module's form, with further entries."""
        names = {entry["annotations"][_NAME] for entry in added}
        self._write_index([entry for entry in self._index() if entry["annotations"][_NAME] not in names] + list(added))

    def files(self, tag, wanted):
        """({path: bytes}, {path: target of the link}) of an image's files and links for whose path `wanted` is true."""
        files, links = {}, {}
        for layer in self.manifest(tag)["layers"]:
            with tarfile.open(self.path(layer["digest"])) as tar:
                for member in tar:
                    _take(tar, member, wanted, files, links)
        return files, links


def _take(tar, member, wanted, files, links):
    """Applies an entry of a layer to the files of the layers below it. A hard link to a file that is not wanted is left out."""
    path = posixpath.normpath(member.name).lstrip("/")
    folder, name = posixpath.split(path)
    if name == ".wh..wh..opq":
        _remove_below(folder, files, links)
    elif name.startswith(".wh."):
        removed = posixpath.join(folder, name.removeprefix(".wh."))
        _remove_below(removed, files, links)
        files.pop(removed, None)
        links.pop(removed, None)
    elif wanted(path):
        files.pop(path, None)
        links.pop(path, None)
        if member.issym():
            links[path] = posixpath.normpath(posixpath.join(folder, member.linkname)).lstrip("/")
        elif member.isfile():
            files[path] = tar.extractfile(member).read()
        elif member.islnk():
            target = posixpath.normpath(member.linkname).lstrip("/")
            if target in files:
                files[path] = files[target]


def _remove_below(folder, *tables):
    for table in tables:
        for path in [path for path in table if path.startswith(f"{folder}/")]:
            del table[path]
