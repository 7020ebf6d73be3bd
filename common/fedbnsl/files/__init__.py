"""Files that are written whole or not at all, and the forms of text in them."""
