"""From columns of debug prints to forward passes: ``Finder`` is the one seam, chunks in, tables out."""
