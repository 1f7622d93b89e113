"""Statements about artifacts in in-toto's form: SLSA's provenance (https://slsa.dev/spec/v1.0/provenance), and bills of materials.

They have no times of the build: the same sources, base image and tools make the same statements.
"""
from deploy.release.spdx import HOME

BUILD_TYPE = f"{HOME}/blob/main/docs/releasing.md#provenance"


def _statement(subjects, predicate_type, predicate):
    named = [{"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}} for name, digest in sorted(subjects.items())]
    return {"_type": "https://in-toto.io/Statement/v1", "subject": named, "predicateType": predicate_type, "predicate": predicate}


def of_materials(name, digest, document):
    """The statement that an SPDX document is the bill of materials of an artifact."""
    return _statement({name: digest}, "https://spdx.dev/Document", document)


def of_origin(subjects, version, revision, base_image, parameters, builder, tools):
    """`subjects`: {name: digest} of the artifacts. `base_image`: (name, digest). `tools`: {name: version} of the programs that built them."""
    name, digest = base_image
    materials = [{"uri": f"git+{HOME}@refs/tags/v{version}", "digest": {"gitCommit": revision}},
                 {"uri": f"docker://{name}", "digest": {"sha256": digest.removeprefix("sha256:")}}]
    parameters = {**parameters, "version": version, "baseImage": name}
    return _statement(subjects, "https://slsa.dev/provenance/v1", {
        "buildDefinition": {"buildType": BUILD_TYPE, "externalParameters": parameters, "internalParameters": {}, "resolvedDependencies": materials},
        "runDetails": {"builder": {"id": builder, "version": tools}},
    })
