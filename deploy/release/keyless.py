"""Signatures without a key file: cosign gets a certificate for the identity of the caller, and notes each signature in a public log."""
import json
import pathlib
import subprocess
import tempfile


def _cosign(*words):
    subprocess.run(["cosign", *map(str, words)], check=True)


def sign_files(folder):
    """Signs the files to download: FILE.sigstore.json has signature, certificate and the log's answer."""
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.endswith(".sigstore.json")):
        _cosign("sign-blob", "--yes", f"--bundle={path}.sigstore.json", path)


def sign_manifests(documents, attached, statement):
    """Signs and attests pushed manifests, and signs those attached to them. `documents`: {NAME@DIGEST: file of its bill of materials}; `attached`:
    NAME@DIGEST; `statement`: the bytes of the provenance."""
    with tempfile.TemporaryDirectory() as scratch:
        predicate = pathlib.Path(scratch) / "predicate.json"
        predicate.write_text(json.dumps(json.loads(statement)["predicate"]))
        for reference, document in documents.items():
            _cosign("sign", "--yes", reference)
            _cosign("attest", "--yes", "--type=spdxjson", f"--predicate={document}", reference)
            _cosign("attest", "--yes", "--type=slsaprovenance1", f"--predicate={predicate}", reference)
    for reference in attached:
        _cosign("sign", "--yes", reference)
