"""How the constants of the package were found: experiments and their dated data. README.md lists them."""
