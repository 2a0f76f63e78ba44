"""Array types of numeric code."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
