"""Search spaces: which layouts and meshes are tried."""
