"""Bills of materials in SPDX 2.3 as JSON (https://spdx.github.io/spdx-spec/v2.3)."""
import datetime
import re

from deploy.release import debian

HOME = "https://github.com/addend/addend"


def time_of(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def identifier(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(words))


def element(name, version, supplier, licence="NOASSERTION", purl=None, sha256=None, **more):
    """A package. `more`: further fields, by SPDX's names."""
    found = {"SPDXID": identifier("Package", name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
             "supplier": f"Organization: {supplier}" if supplier else "NOASSERTION", "filesAnalyzed": False,
             "licenseConcluded": "NOASSERTION", "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more}
    if purl:
        found["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    if sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256.removeprefix("sha256:")}]
    return found


class Document:
    """A document that describes a single element and the elements that belong to it."""

    def __init__(self, name, described, epoch):
        self.name, self.epoch, self.described = name, epoch, described
        self.elements, self.relations, self.texts = [described], [], {}

    def relate(self, relation, other, reverse=False):
        """Adds an element in a relation to the described element, or (reverse) an element to which that is in the relation."""
        if other["SPDXID"] not in {known["SPDXID"] for known in self.elements}:
            self.elements.append(other)
        ends = (other, self.described) if reverse else (self.described, other)
        self.relations.append({"spdxElementId": ends[0]["SPDXID"], "relationshipType": relation, "relatedSpdxElement": ends[1]["SPDXID"]})

    def debian_package(self, package, distribution):
        """The element of a Debian package. SPDX demands a text for each licence that has no name there: it is in the package's notice."""
        names = []
        for licence in package.licences:
            if debian.is_spdx(licence):
                names.append(licence)
                continue
            reference = "LicenseRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", licence).strip("-")
            self.texts.setdefault(reference, (licence, package.name))
            names.append(reference)
        return element(package.name, package.version, "Debian", " AND ".join(dict.fromkeys(names)) or "NOASSERTION", package.purl(distribution),
                       sourceInfo=f"built from the Debian source package {package.source} {package.source_version}")

    def json(self):
        # Unique and yet equal for equal input: the described element's checksum is part of it.
        namespace = f"{HOME}/spdx/{self.name}-{self.described['checksums'][0]['checksumValue']}"
        document = {
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": self.name, "documentNamespace": namespace,
            "creationInfo": {"created": time_of(self.epoch), "creators": ["Organization: Addend", "Tool: addend-scripts-release"]},
            "packages": self.elements,
            "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                               "relatedSpdxElement": self.described["SPDXID"]}, *self.relations],
        }
        if self.texts:
            document["hasExtractedLicensingInfos"] = [
                {"licenseId": reference, "name": name,
                 "extractedText": f"Debian calls the licence '{name}'. Its text is in /usr/share/doc/{package}/copyright."}
                for reference, (name, package) in sorted(self.texts.items())]
        return document
