"""Signatures in cosign's formats, made by openssl with a key file: ECDSA on P-256 over SHA-256, in base64."""
import base64
import subprocess

from deploy.release import layout

SIGNATURE = "dev.cosignproject.cosign/signature"
STATEMENT = "application/vnd.in-toto+json"


class Unusable(Exception):
    """The reason why a key cannot sign, in a sentence."""


class Key:
    def __init__(self, path):
        self.path = path
        # An empty password: openssl would ask for it otherwise.
        read = subprocess.run(["openssl", "pkey", "-in", path, "-passin", "pass:", "-noout", "-text"], capture_output=True, text=True, check=False)
        if read.returncode != 0:
            raise Unusable(f"openssl cannot read a private key in {path}: it takes PEM without a password, as "
                           "'openssl ecparam -name prime256v1 -genkey -noout' makes it; cosign's own file cosign.key is encrypted.")
        if "prime256v1" not in read.stdout:
            raise Unusable(f"the key in {path} is not on the curve P-256 (prime256v1), on which cosign's keys are.")

    def sign(self, data):
        """The signature of bytes as 'cosign sign-blob' prints it."""
        made = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.path], input=data, capture_output=True, check=True)
        return base64.b64encode(made.stdout).decode()


def attached(digest, suffix):
    """The tag by which cosign finds what is attached to a manifest."""
    return f"{digest.replace(':', '-')}.{suffix}"


def add_image(target, tag, layers):
    """Adds a manifest as cosign makes it: the configuration of an image whose layers are these contents."""
    empty = "0001-01-01T00:00:00Z"
    config = {"architecture": "", "os": "", "created": empty, "config": {}, "history": [{"created": empty} for _ in layers],
              "rootfs": {"type": "layers", "diff_ids": [layout.digest_of(layer.data) for layer in layers]}}
    return target.add(tag, layout.Content("application/vnd.oci.image.config.v1+json", layout.compact(config)), layers)


def sign_manifest(key, target, reference, digest):
    """Attaches a signature to a manifest: `reference` is its repository."""
    payload = layout.compact({"critical": {"identity": {"docker-reference": reference}, "image": {"docker-manifest-digest": digest},
                                           "type": "cosign container image signature"}, "optional": None})
    add_image(target, attached(digest, "sig"),
              [layout.Content("application/vnd.dev.cosign.simplesigning.v1+json", payload, {SIGNATURE: key.sign(payload)})])


def attest(key, target, digest, statements):
    """Attaches signed statements (DSSE) about a manifest: each is an in-toto statement."""
    layers = []
    for statement in statements:
        data = layout.compact(statement)
        signed = b"DSSEv1 %d %s %d %s" % (len(STATEMENT), STATEMENT.encode(), len(data), data)
        envelope = {"payloadType": STATEMENT, "payload": base64.b64encode(data).decode(), "signatures": [{"keyid": "", "sig": key.sign(signed)}]}
        annotations = {SIGNATURE: "", "predicateType": statement["predicateType"]}
        layers.append(layout.Content("application/vnd.dsse.envelope.v1+json", layout.compact(envelope), annotations))
    add_image(target, attached(digest, "att"), layers)


def attach_sbom(target, digest, document):
    """Attaches a bill of materials to a manifest, by a tag instead of the API of referrers: each registry and client knows tags. Returns the digest
    of the attached manifest."""
    return add_image(target, attached(digest, "sbom"), [layout.Content("text/spdx+json", document)])
