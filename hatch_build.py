"""How the three distributions of this repository are built; each pyproject.toml names what it takes from here."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Add another distribution, in the very same version, to the dependencies that the project's table lists."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Complete the metadata."""
        other = f"{self.config['same-version']}=={metadata['version']}"
        metadata["dependencies"] = [other, *self.config.get("dependencies", [])]


class FromElsewhere(BuildHookInterface[Any]):
    """Take files from outside the project's folder into its wheel; an editable install reads them where they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Begin a build."""
        if version == "standard":
            build_data["force_include"] |= self.config["files"]
