"""Debian's records of the packages in a root file system: names, versions, sources, and licences as far as a machine can read them."""
import dataclasses
import re
import urllib.parse

# Debian's short names of licences, and SPDX's.
_SPDX = {
    "0BSD": "0BSD", "Apache-2.0": "Apache-2.0", "BSD-2-clause": "BSD-2-Clause", "BSD-3-clause": "BSD-3-Clause",
    "BSD-4-clause": "BSD-4-Clause", "BSL-1.0": "BSL-1.0", "CC0-1.0": "CC0-1.0", "Expat": "MIT", "FTL": "FTL", "ISC": "ISC", "MPL-1.1": "MPL-1.1",
    "MPL-2.0": "MPL-2.0", "Zlib": "Zlib", "zlib": "Zlib",
}
for _family, _versions in (("GPL", ("1", "2", "3")), ("LGPL", ("2", "2.1", "3"))):
    for _version in _versions:
        _full = _version if "." in _version else f"{_version}.0"
        for _name in {_version, _full}:
            _SPDX[f"{_family}-{_name}"] = f"{_family}-{_full}-only"
            _SPDX[f"{_family}-{_name}+"] = f"{_family}-{_full}-or-later"
_MACHINE_READABLE = re.compile(r"^Format(-Specification)?:.*copyright-format", re.M | re.I)


@dataclasses.dataclass(frozen=True)
class Package:
    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    licences: tuple  # names of SPDX, or Debian's names where SPDX has no name that means the same; empty: unknown

    def purl(self, distribution):
        """The package's address for scanners. Debian's security tracker knows packages by their source, the qualifier `upstream`."""
        upstream = self.source if self.source_version == self.version else f"{self.source}@{self.source_version}"
        qualifiers = {"arch": self.architecture, "distro": distribution} | ({} if upstream == self.name else {"upstream": upstream})
        return (f"pkg:deb/debian/{_quoted(self.name)}@{_quoted(self.version)}?"
                + "&".join(f"{key}={_quoted(value)}" for key, value in sorted(qualifiers.items())))


def _quoted(text):
    return urllib.parse.quote(text, safe=":~")


def is_record(path):
    """Whether a path of a root file system is needed for packages() and distribution()."""
    return bool(re.fullmatch(r"var/lib/dpkg/(status|status\.d/[^/]+)|(etc|usr/lib)/os-release|usr/share/doc/[^/]+(/copyright)?", path))


def distribution(files):
    """The release of Debian, such as debian-12."""
    text = (files.get("etc/os-release") or files["usr/lib/os-release"]).decode()
    values = dict(re.findall(r'^(\w+)="?(.*?)"?$', text, re.M))
    return f"{values['ID']}-{values['VERSION_ID']}"


def packages(files, links):
    """The installed packages by name, from the records of dpkg (a whole Debian) and of deploy/docker/make-root (a record for each package)."""
    records = [text.decode() for path, text in sorted(files.items()) if path.startswith("var/lib/dpkg/status")]
    found = {}
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(records)):
        fields = dict(re.findall(r"^([\w-]+): *(.*)$", paragraph, re.M))
        if fields.get("Status") == "install ok installed":
            found[fields["Package"]] = _package(fields, files, links)
    return [package for _, package in sorted(found.items())]


def _package(fields, files, links):
    name, version = fields["Package"], fields["Version"]
    source = re.fullmatch(r"(\S+)(?: \((.*)\))?", fields.get("Source", name))
    return Package(name, version, fields["Architecture"], source[1], source[2] or version, licences_in(_copyright(name, files, links)))


def _copyright(package, files, links):
    """The notice of a package, whose folder may be a link to that of a package of the same source; empty if there is none."""
    folder = f"usr/share/doc/{package}"
    path = f"{links.get(folder, folder)}/copyright"
    return files.get(links.get(path, path), b"").decode(errors="replace")


def licences_in(notice):
    """The licences of a notice in Debian's machine-readable format; empty for prose."""
    if not _MACHINE_READABLE.search(notice[:1000]):
        return ()
    names = {name.strip() for name in re.findall(r"^License:[ \t]*(\S[^\n]*)$", notice, re.M | re.I)}
    return tuple(sorted(spdx_name(name) for name in names))


def spdx_name(name):
    """SPDX's expression for Debian's short name; a choice of licences is a choice there, too. Other names stay as they are."""
    choices = re.split(r"\s+or\s+", name)
    if all(choice in _SPDX for choice in choices):
        expression = " OR ".join(dict.fromkeys(_SPDX[choice] for choice in choices))
        return f"({expression})" if " OR " in expression else expression
    return name


def is_spdx(name):
    return all(choice in _SPDX.values() for choice in name.strip("()").split(" OR "))
