"""From blocks of bytes to chunks of columns: ``Scanner`` is the one seam, bytes in, arrays out."""
