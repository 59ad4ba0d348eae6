"""What needs attention: sentences about what is wrong, each with a link to where it is mended."""
