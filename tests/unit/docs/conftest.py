"""Makes the extensions of the documentation importable."""

from __future__ import annotations

import sys

from tests.support.source import ROOT

sys.path.append(str(ROOT / "docs" / "_extensions"))
