"""The versions of transformers that were tested; importing this module beside another one is an error."""

from packaging.specifiers import SpecifierSet
from transformers import __version__

# as in setup.cfg, which folders with a copy of this code lack
TRANSFORMERS = ">=5.24,<5.25"

if not SpecifierSet(TRANSFORMERS).contains(__version__, prereleases=True):
    raise ImportError(
        f"this code was tested with transformers{TRANSFORMERS}, not {__version__}, where it might silently give other "
        f"answers; pip install 'transformers{TRANSFORMERS}'"
    )
