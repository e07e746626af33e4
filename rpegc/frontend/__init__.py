"""From a user's YAML and config.json to a verified RPEG."""
