"""Dependencies of a distribution that needs another one of this repository in the very same version."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Add the other distribution, pinned, to the dependencies that the project's table lists."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Complete the metadata."""
        other = f"{self.config['same-version']}=={metadata['version']}"
        metadata["dependencies"] = [other, *self.config.get("dependencies", [])]
