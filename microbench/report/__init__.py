"""Reports draw a Report, which is already all words and numbers; nothing here measures."""
