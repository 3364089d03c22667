"""What every room uses: checks of arguments, errors, files, identities, images, names and texts."""
