"""Bytes from anywhere, as blocks with true places: files, archives, pipes, growing files, wrapped and remote logs."""
